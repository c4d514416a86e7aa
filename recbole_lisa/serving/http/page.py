"""The demo page, one file, and the policy that lets a browser run nothing but what is in it."""

import base64
import hashlib
import re
from importlib.resources import files

PAGE = (files("recbole_lisa.serving.http") / "page.html").read_text(encoding="utf-8")


def _hash_of(tag: str) -> str:
    """The source expression of the one inline element of a kind."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
