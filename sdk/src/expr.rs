//! `vars` expressions (lua-resty-expr).
