"""What the artifacts share: tools and lock files, wheel, bills of materials, the release, the demonstration."""
