"""The messages of the package's errors, read from its source: each call of UsageError and of its relatives."""

import ast
from pathlib import Path

ERRORS = ("UsageError", "DownloadError", "TrainingDivergedError", "ProcessFailedError")


def text_of(node: ast.expr) -> str:
    """The text of a message, with the name of each value that a run puts in: `unknown model '{model}'`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    return f"{{{name}}}" if name.islower() and not name.startswith("_") and name != "hint" else "…"


def messages_of(file: Path) -> list[str]:
    """The messages of one module, each once, in the order of the file."""
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    raised = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ERRORS and call.args]
    raised.sort(key=lambda call: (call.lineno, call.col_offset))
    texts = (" ".join(text_of(call.args[0]).replace(".…", "").split()) for call in raised)
    return list(dict.fromkeys(text for text in texts if text not in ("{message}", "…")))
