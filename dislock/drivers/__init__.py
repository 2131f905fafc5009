"""What carries out the protocol's steps on a server. The only importers of psycopg."""
