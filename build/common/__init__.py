"""What the ways of shipping share: tools and lock files, wheel, bills of materials, the release, the demonstration."""
