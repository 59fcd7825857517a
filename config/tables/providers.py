"""`[providers.NAME]` and `[ledger]`: cloud APIs, the dialects of servers, prices and limits.

Owns the words for what a server understands, which models and workers use too.
"""

from typing import Literal

from config.tables.values import (
    Amount,
    ConfigTable,
    Currency,
    FieldName,
    HttpUrl,
    Positive,
    Seconds,
)

ReasoningField = Literal["reasoning_content", "reasoning", "none"]
CapField = Literal["max_tokens", "max_completion_tokens"]
CallIdForm = Literal["any", "short", "nine"]
ThinkingSwitch = Literal[
    "chat_template_kwargs", "thinking", "enable_thinking", "reasoning", "reasoning_effort", "none"
]
Continues = Literal["auto", "off", "continue_final_message", "prefix", "last_message"]


class PriceConfig(ConfigTable, frozen=True):
    """`price = { ... }`: units of the ledger's currency per million tokens. Without `cached_input`
    cached prompt tokens cost as much as others. `request` is the price of one request whose cost
    tokens do not show: of a picture, of an audio request, and of any path in `[gateway] paths`. 0
    is free.
    """

    input: Amount
    output: Amount
    cached_input: Amount | None = None
    request: Amount | None = None


class LimitsConfig(ConfigTable, frozen=True):
    """`limits = { ... }`: units of the ledger's currency per UTC day and month. 0 forbids every
    request with a cost; without a value there is no limit.
    """

    daily: Amount | None = None
    monthly: Amount | None = None

    @property
    def any(self) -> bool:
        return self.daily is not None or self.monthly is not None


class TariffConfig(ConfigTable, frozen=True):
    """`[providers.NAME.models."MODEL"]`: values of one model that differ from its provider's."""

    price: PriceConfig | None = None
    max_output_tokens: Positive | None = None


class ProviderConfig(ConfigTable, frozen=True):
    """`[providers.NAME]`: an OpenAI-compatible API. Its key comes from the environment variable
    `api_key_env` or the file `api_key_file`, never from the configuration itself.

    `first_token_s` bounds the time to the first content of a stream, `read_s` the time to the whole
    head of an answer and the silence within the answer, `answer_s` the time to an answer in one
    piece.

    `max_output_tokens` is the longest answer of its models. With `stream_usage` the usage of every
    stream is requested; without it a stream costs the worst case unless its client asks for usage.
    `session_hint` is the header (with a hyphen) or body field (without) that gets a name for the
    conversation. `reasoning_field` is the name under which it gets the reasoning of earlier turns;
    by default that of known providers, else that which it uses itself. `thinking_switch` is the
    field by which requests of the Messages API switch its thinking; by default that of known
    providers. `cap_field` is the field that bounds an answer, `call_ids` the form of the ids of
    calls in a history (`short`: at most 40 characters, `nine`: nine letters and digits); by default
    those of known providers, else the client's own. `continues` is how it goes on with an answer
    that another upstream of the same model has begun; by default known providers do, for models of
    the same name.
    """

    base_url: HttpUrl
    api_key_env: str | None = None
    api_key_file: str | None = None
    connect_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    read_s: Seconds = 30.0
    answer_s: Seconds = 600.0
    price: PriceConfig | None = None
    max_output_tokens: Positive | None = None
    models: dict[str, TariffConfig] = {}
    limits: LimitsConfig = LimitsConfig()
    stream_usage: bool = True
    session_hint: FieldName | None = None
    reasoning_field: ReasoningField | None = None
    thinking_switch: ThinkingSwitch | None = None
    cap_field: CapField | None = None
    call_ids: CallIdForm | None = None
    continues: Continues = "auto"


class LedgerConfig(ConfigTable, frozen=True):
    """`[ledger]`: the file of usage and cost, and the currency of all prices and limits. By default
    `path` is in the user's state directory. `shared` is the Redis server by which gateways on
    several hosts share spending limits; the environment variable `shared_password_env` holds its
    password. `list_prices` names the prices for models without one: "builtin" is Herma's dated
    list, "none" is no list, anything else is a file of the same form.
    """

    path: str | None = None
    currency: Currency = "USD"
    shared: str | None = None
    shared_password_env: str | None = None
    list_prices: str = "builtin"
