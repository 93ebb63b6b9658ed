"""Encodes the messages of the wire as msgpack, and says which go in which direction."""

from __future__ import annotations

import msgspec

from nbdist.wire.messages import (
    Abort,
    Display,
    Done,
    Hello,
    Interrupt,
    Message,
    Pulse,
    Quit,
    Received,
    Reply,
    Run,
)
from nbdist.wire.rank_calls import Ask
from nbdist.wire.stand_ins import plain

ToAgent = Run | Interrupt | Abort | Ask | Received | Quit
ToHub = Hello | Done | Display | Pulse | Reply

encode_to_agent = msgspec.msgpack.Encoder().encode
decode_to_agent = msgspec.msgpack.Decoder(ToAgent).decode
decode_to_hub = msgspec.msgpack.Decoder(ToHub).decode


def encode_to_hub(message: Message) -> bytes:
    """Encode a message; values of the user's code that msgpack cannot encode are replaced.

    Messages to an agent have no such replacement: code must arrive unchanged or not at all.
    """
    try:
        return encode_to_agent(message)
    except (TypeError, ValueError, OverflowError, RecursionError):  # ValueError: a lone surrogate
        return encode_to_agent(plain(message))
