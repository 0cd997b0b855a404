//! Spot and on-demand: S1 to S22 of the research, on the real server.

use serde_json::json;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn s2_of_five_replicas_with_three_on_demand_two_are_spot() {
    let world = World::new().await;
    world.fleet(3, 3).await;
    let fields = json!({ "replicas": 5, "capacity": { "max_on_demand": 3 } });
    world.apply("web", fields).await.expect(201);
    world.ready("web").await;
    assert_eq!(world.seats("web").await, "0O 1O 2O 3S 4S");
}
