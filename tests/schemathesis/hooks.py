"""Limits generated requests: no streams, waits of 50 ms, and plain names."""

import re

import schemathesis

SHORT_WAIT = "50ms"


def soften(fields):
    if not isinstance(fields, dict):
        return
    if str(fields.get("hold")).lower() in ("true", "1", "yes", ""):
        fields["hold"] = False
    # A lease of some milliseconds is over before the next request of its sequence, which a schema cannot say.
    ttl = fields.get("ttl")
    if isinstance(ttl, str) and re.fullmatch(r"[0-9]+ms", ttl):
        fields["ttl"] = "30s"
    # A revoked lease runs on to its end (202); the check for use after deletion takes that for a deletion.
    # tests/it/http_contract/operators.rs has it.
    if fields.get("force") == "revoke":
        fields["force"] = "now"
    wait = fields.get("wait")
    if isinstance(wait, str) and re.fullmatch(r"[0-9]+(ms|s|m|h)", wait):
        fields["wait"] = SHORT_WAIT


@schemathesis.hook
def before_call(context, case, kwargs):
    soften(case.query)
    soften(case.body)
    if case.headers is not None and "Prefer" in case.headers:
        del case.headers["Prefer"]
