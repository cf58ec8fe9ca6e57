"""What several providers need and no port says: detached processes, locked and atomically written files."""
