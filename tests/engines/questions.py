"""What real engines are asked: twenty questions, and a tool that the built-in model calls."""

QUESTIONS = [
    "Hello! Who are you?", "What is 2 + 2?", "Tell me a short story.", "Count to five.",
    "What is the capital of France?", "Say hello in German.", "What is a prefix cache?",
    "Write one line of Python.", "Name three colours.", "What day comes after Monday?",
    "Is the sky blue?", "Spell the word cat.", "What is your name?", "Are you a person?",
    "What is 7 - 3?", "What can you do?", "How are you?", "Repeat: one two three.",
    "Thank you!", "Good morning.",
]  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
