"""Where memory survives: each module is one `Ledger`."""
