-- The node that a volume's data are copied to for the last time before it lives there. While it is set,
-- no instance may start to use the volume.
ALTER TABLE volume ADD COLUMN moving_to TEXT;

-- A tenant's quota counts each instance once, by its primary claim, however many places it has while it
-- moves. Before, all of its claims counted.
UPDATE tenant SET
    used_cpu = (SELECT coalesce(sum(c.cpu), 0) FROM claim c WHERE c.owner = tenant.owner AND c.role = 0),
    used_memory = (SELECT coalesce(sum(c.memory), 0) FROM claim c WHERE c.owner = tenant.owner AND c.role = 0),
    used_disk = (SELECT coalesce(sum(c.disk), 0) FROM claim c WHERE c.owner = tenant.owner AND c.role = 0),
    used_instances = (SELECT count(*) FROM claim c WHERE c.owner = tenant.owner AND c.role = 0)
WHERE EXISTS (SELECT 1 FROM claim c WHERE c.owner = tenant.owner AND c.role <> 0);
