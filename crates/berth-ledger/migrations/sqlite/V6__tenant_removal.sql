-- A tenant that is being removed, as JSON: since when, by whom, and whether agents are waited for.
-- While it is set, nothing is granted to the tenant or made for it.
ALTER TABLE tenant ADD COLUMN removal TEXT;
