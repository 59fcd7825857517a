"""How an alert is written for a receiver: generic JSON, ntfy, Slack's form.

Owns the bodies and headers. Must not know addresses.

    https://docs.ntfy.sh/publish/ (priority 1 to 5, tags that become emoji)
    https://api.slack.com/messaging/webhooks ({"text": ...})
"""

from typing import Final, Literal

import msgspec

from gateway.alerts.alert import Alert, Level

Form = Literal["json", "ntfy", "slack"]
Header = tuple[bytes, bytes]

_PRIORITIES: Final[dict[Level, bytes]] = {"good": b"2", "warning": b"3", "critical": b"5"}
_TAGS: Final[dict[Level, bytes]] = {
    "good": b"white_check_mark", "warning": b"warning", "critical": b"rotating_light",
}  # fmt: skip
_MARKS: Final[dict[Level, str]] = {
    "good": ":white_check_mark:", "warning": ":warning:", "critical": ":rotating_light:",
}  # fmt: skip
_JSON: Final = (b"content-type", b"application/json")


def as_json(alert: Alert) -> bytes:
    """{"id", "kind", "level", "title", "text", "event"}; `event` is null for a digest."""
    fields = alert._asdict() | {"event": msgspec.Raw(alert.event or b"null")}
    return msgspec.json.encode(fields)


def message_of(alert: Alert, form: Form) -> tuple[list[Header], bytes]:
    """Headers and body of the POST."""
    if form == "json":
        return [_JSON], as_json(alert)
    if form == "slack":
        text = f"{_MARKS[alert.level]} *{_escaped(alert.title)}*\n{_escaped(alert.text)}"
        return [_JSON], msgspec.json.encode({"text": text})
    title = alert.title.encode("ascii", "replace")
    headers = [(b"title", title), (b"priority", _PRIORITIES[alert.level])]
    return [*headers, (b"tags", _TAGS[alert.level])], alert.text.encode()


def _escaped(text: str) -> str:
    """The text with the three characters escaped that have a meaning in Slack's markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
