-- How large an instance may be, as it was last answered: as JSON, and only for elastic instances.
ALTER TABLE claim ADD COLUMN permit TEXT;
