//! Request targets: one normal form for routing, plugins and the origin.
