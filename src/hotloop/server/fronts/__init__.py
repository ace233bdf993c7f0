"""HTTP in a process of its own, a front, and the engine in another, with a socket between them.

front process                                         engine process
HTTP ─ chat ─ Request ─ RemoteEngine ── messages ──── EngineHost ─ Engine
                           one each way for a step
"""
