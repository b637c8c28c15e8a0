"""Event source mappings on this machine: `Pump` reads streams and invokes functions, `Positions` stores how far."""
