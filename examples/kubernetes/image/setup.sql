-- Once, by the owner of the database: the table of the locks and that of the job, for the role that the job connects as.
CREATE TABLE key_value (key text PRIMARY KEY, value text NOT NULL, expire_at timestamptz NOT NULL);
CREATE TABLE report (day date PRIMARY KEY, total int NOT NULL, token bigint NOT NULL);
GRANT SELECT, INSERT, UPDATE ON key_value, report TO cron;
