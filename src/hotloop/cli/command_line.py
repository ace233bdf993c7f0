"""How commands show their flags: settings in groups, help without the line breaks of the source, no empty defaults.

The features that are on by default have no flags of their own: `--disable` takes their names.
"""

from typing import Any

from cyclopts import App, ArgumentCollection, Group, Parameter

from hotloop.core.config import CLASS_SETTINGS, CONFIG_CLASSES, FEATURES

_GROUPS: dict[str, tuple[str, ...]] = {
    "Model": ("model", "weights", "precision", "load_format", "served_name"),
    "Hardware": ("device", "gpus", "gpu_memory"),
    "Cache": (
        *("kv_memory", "kv_precision", "host_kv", "kv_dir", "kv_dir_size", "kv_peers", "kv_events", "pinned_fraction"),
        *("prompt_memory_tokens", "grammar_memory", "batch_dir"),
    ),
    "Scheduling": (
        "max_context",
        "max_running",
        "max_running_per_root",
        "max_waiting",
        "max_step_tokens",
        *CLASS_SETTINGS,
    ),
    "Features": ("disable",),
    "Drafting": ("draft_model", "max_draft_tokens", "draft_history_tokens"),
    "Formats": ("tool_format", "thinking_format", "max_thinking"),
    "Routing": (
        *("replica", "policy", "stabilise", "tell_late_tools", "spend_file", "pool_share", "pool_tokens"),
        *("max_connections", "queue_timeout_s", "health_interval_s"),
    ),
    "Retries": (
        *("connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s", "max_retries", "retry_share"),
        "hedge_after_s",
    ),
    "Agent": ("max_runs",),
    "Network": (
        "host",
        "port",
        "fronts",
        "max_body",
        "body_memory",
        "write_timeout_s",
        "drain_delay_s",
        "drain_timeout_s",
    ),
    "Security": ("api_key", "api_key_file", "tls_cert", "tls_key", "allowed_hosts", "cors_origins", "cache_isolation"),
    "Observability": (
        *("log_level", "log_format", "explanations", "explain_memory_tokens", "debug_checks", "trace", "trace_content"),
        *("trace_redact", "trace_max_size", "trace_max_age_days", "trace_tags", "trace_otlp"),
    ),
}
SETTING_GROUPS = {
    name: group for title, names in _GROUPS.items() for group in [Group.create_ordered(title)] for name in names
}
OUTPUT_GROUP = Group.create_ordered("Output")


class CommandLine(App):
    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        """What cyclopts makes of a command's signature, as it is to be shown."""
        arguments = super().assemble_argument_collection(**options)
        for argument in arguments:
            shown: dict[str, Any] = {}
            if argument.parameter.help:
                shown["help"] = " ".join(argument.parameter.help.split())
            if argument.field_info.default in (None, "", ()) or argument.field_info.default is False:
                shown["show_default"] = False
            argument.parameter = Parameter.combine(argument.parameter, Parameter(**shown))
            if argument.hint in CONFIG_CLASSES:
                for child in argument.children:
                    child.parameter = Parameter.combine(child.parameter, _place(child.field_info.name))
        return arguments


def _place(setting: str) -> Parameter:
    return Parameter(parse=False) if setting in FEATURES else Parameter(group=(SETTING_GROUPS[setting],))
