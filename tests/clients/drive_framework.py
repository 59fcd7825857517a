"""One turn of a framework, in its own environment: `drive_framework.py NAME URL MODEL PROMPT`.

The agent has one tool, `read_note`, and prints its last words. What a framework says and how it
ends is judged elsewhere.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_note(name: str) -> str:
    """Read a note.

    Args:
        name: The note's name, without its ending.
    """
    return Path(f"{name}.txt").read_text()


def smolagents(url: str, model: str, prompt: str) -> Any:
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    agent = ToolCallingAgent(
        tools=[tool(read_note)],
        model=OpenAIModel(model_id=model, api_base=url, api_key="sk-none"),
        max_steps=30,
    )
    return agent.run(prompt)


def agno(url: str, model: str, prompt: str) -> Any:
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike

    agent = Agent(
        model=OpenAILike(id=model, base_url=url, api_key="sk-none"),
        tools=[read_note],
        telemetry=False,
    )
    return agent.run(prompt).content


def strands(url: str, model: str, prompt: str) -> Any:
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    client = {"base_url": url, "api_key": "sk-none"}
    agent = Agent(
        model=OpenAIModel(client_args=client, model_id=model),
        tools=[tool(read_note)],
        callback_handler=None,
    )
    return agent(prompt)


def crewai(url: str, model: str, prompt: str) -> Any:
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    agent = Agent(
        role="reader",
        goal="Read notes",
        backstory="You read notes.",
        tools=[tool("read_note")(read_note)],
        llm=LLM(model=f"openai/{model}", base_url=url, api_key="sk-none"),
    )
    task = Task(description=prompt, expected_output="A word", agent=agent)
    return Crew(agents=[agent], tasks=[task]).kickoff()


def openai_agents(url: str, model: str, prompt: str) -> Any:
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from agents.models.openai_responses import OpenAIResponsesModel
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    served = OpenAIResponsesModel(
        model=model, openai_client=AsyncOpenAI(base_url=url, api_key="sk-none")
    )
    agent = Agent(name="reader", model=served, tools=[function_tool(read_note)])
    return Runner.run_sync(agent, prompt).final_output


def agent_framework(url: str, model: str, prompt: str) -> Any:
    import asyncio

    from agent_framework import Agent
    from agent_framework_openai import OpenAIChatCompletionClient

    async def turn() -> Any:
        client = OpenAIChatCompletionClient(model=model, base_url=url, api_key="sk-none")
        stream = Agent(client=client, tools=[read_note]).run(prompt, stream=True)
        return (await stream.get_final_response()).text

    return asyncio.run(turn())


def haystack(url: str, model: str, prompt: str) -> Any:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import tool
    from haystack.utils import Secret

    generator = OpenAIChatGenerator(
        model=model,
        api_base_url=url,
        api_key=Secret.from_token("sk-none"),
        streaming_callback=lambda _: None,
    )
    agent = Agent(chat_generator=generator, tools=[tool(read_note)])
    return agent.run(messages=[ChatMessage.from_user(prompt)])["messages"][-1].text


def autogen(url: str, model: str, prompt: str) -> Any:
    import asyncio

    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        structured_output=True,
        family="unknown",
    )
    client = OpenAIChatCompletionClient(
        model=model, base_url=url, api_key="sk-none", model_info=info
    )
    agent = AssistantAgent(
        "reader",
        model_client=client,
        model_client_stream=True,
        tools=[read_note],
        max_tool_iterations=5,
    )
    return asyncio.run(agent.run(task=prompt)).messages[-1].content


def dspy(url: str, model: str, prompt: str) -> Any:
    import dspy

    dspy.configure(lm=dspy.LM(f"openai/{model}", api_base=url, api_key="sk-none", cache=False))
    return dspy.Predict("question -> answer")(question=prompt).answer


DRIVERS: dict[str, Callable[[str, str, str], Any]] = {
    "smolagents": smolagents,
    "agno": agno,
    "strands": strands,
    "crewai": crewai,
    "openai-agents": openai_agents,
    "agent-framework": agent_framework,
    "haystack": haystack,
    "autogen": autogen,
    "dspy": dspy,
}

if __name__ == "__main__":
    name, url, model, prompt = sys.argv[1:]
    print(DRIVERS[name](url, model, prompt))
