-- Run this once, as the owner of the database. It makes the tables of the locks and of the job. The job connects as cron.
CREATE TABLE key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL);
CREATE TABLE report (day date PRIMARY KEY, total int NOT NULL, token bigint NOT NULL);
GRANT SELECT, INSERT, UPDATE ON key_value, report TO cron;
