//! Texts with `$variables` in them.
