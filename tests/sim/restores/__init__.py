"""The metadata and the disks of a cluster put back to earlier moments."""
