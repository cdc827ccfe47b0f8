"""The dispatch/combine backends; `moe_ep.create_communication` finds them by name."""
