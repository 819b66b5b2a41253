"""The ULP (RFC 5040): what its messages hold, where the device writes or reads them itself."""
