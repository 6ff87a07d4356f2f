"""Reports on this machine: devices, problems, and hints for more speed."""
