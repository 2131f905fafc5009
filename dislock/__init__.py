"""Locks on PostgreSQL for cron jobs and commands."""
