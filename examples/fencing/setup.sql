-- The fencing token of the run that may write. It only rises.
CREATE TABLE fence (job text PRIMARY KEY, token bigint NOT NULL);

CREATE TABLE report (line int PRIMARY KEY, body text NOT NULL, token bigint NOT NULL);

-- Refuses a row of any run but the newest. With FOR SHARE, a run that raises the token waits until earlier writers have
-- committed. A writer that waits for the new token sees it.
CREATE FUNCTION refuse_stale_token() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM fence WHERE job = TG_ARGV[0] AND token = NEW.token FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token %: a later run of % has begun', NEW.token, TG_ARGV[0]
            USING ERRCODE = 'DL075';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER fenced BEFORE INSERT OR UPDATE ON report
    FOR EACH ROW EXECUTE FUNCTION refuse_stale_token('report');

-- The role of the jobs. FOR SHARE needs UPDATE on the fence.
GRANT SELECT, INSERT, UPDATE ON fence, report TO cron;
