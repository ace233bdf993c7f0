"""HTTP in processes of their own, the fronts, and the engine in another, connected by sockets.

front process                                         engine process
HTTP ─ chat ─ Request ─ RemoteEngine ── messages ──── EngineHost ─ Engine
                           one each way for a step
"""
