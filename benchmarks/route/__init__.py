"""How much a router costs, what it survives, and what it saves: stub replicas, load, faults, and a real fleet."""
