"""OpenID Connect: an issuer's signing keys, and the tokens they sign."""
