"""Many models in one server: loaded when they are asked for, unloaded when they are idle or memory is needed."""
