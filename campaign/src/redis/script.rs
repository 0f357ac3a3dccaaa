//! Runs a script of `lua/` by its hash; loads it where the server answers NOSCRIPT, and runs again only then.
