//! The steps of instances that move while they run, as their agents play them.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::guests::{Moving, Stage};
use crate::model::{Model, NODES};

/// When an agent starts a move at the latest: the server gives up after 120 s.
const START_WITHIN: Duration = Duration::from_secs(40);

impl Model {
    /// Has agents start what they were told long ago; only on a machine that is very busy.
    pub(crate) async fn start_overdue_moves(&mut self) {
        let is_overdue =
            |moving: &Moving| moving.stage == Stage::Held && moving.since.elapsed() > START_WITHIN;
        for id in self.ids(|guest| guest.moving.as_ref().is_some_and(is_overdue)) {
            self.go_on(&id).await;
        }
    }

    async fn report(&self, node: &str, id: &str, step: &str) -> crate::common::Reply {
        let body = json!({ "id": id, "step": step });
        self.stage.post(&format!("/v1/nodes/{node}/migrations"), &body).await
    }

    /// Tells an instance to move.
    pub(crate) async fn begin_move(&mut self, id: &str) -> String {
        let source = self.guests[id].node.clone();
        let others: Vec<&str> = NODES.into_iter().filter(|node| *node != source).collect();
        let target = self.dice.pick(&others);
        let to = if self.dice.percent(70) { json!({ "to": target }) } else { json!({}) };
        let reply = self.stage.post(&format!("/v1/instances/{id}/migrate"), &to).await;
        if reply.status != 200 {
            assert_eq!(reply.status, 409, "{}", reply.text);
            return format!("{id} cannot move to {target}: {}", reply.code());
        }
        let moving = reply.json();
        assert!(moving["state"] == "target_held" || moving["state"] == "failed", "{moving}");
        if moving["state"] == "target_held" {
            let text = |field: &str| moving[field].as_str().unwrap().to_owned();
            let target = text("target");
            let (id_of_move, stage, since) = (text("id"), Stage::Held, Instant::now());
            let moving = Moving { id: id_of_move, source, target, stage, since };
            self.guests.get_mut(id).unwrap().moving = Some(moving);
        }
        format!("{id} moves to {}: {}", moving["target"], moving["state"])
    }

    /// Takes a move one step further.
    pub(crate) async fn go_on(&mut self, id: &str) -> String {
        let Some(moving) = self.guests[id].moving.clone() else { return self.begin_move(id).await };
        let Moving { id: migration, source, target, stage, .. } = &moving;
        match stage {
            Stage::Held => {
                self.report(source, migration, "copying").await.expect(200);
                self.stage_of(id, Stage::Copying);
            }
            Stage::Copying => {
                self.switch(id, &moving).await;
                self.stage_of(id, Stage::Switched);
            }
            Stage::Switched => {
                self.report(source, migration, "cleaned_up").await.expect(200);
                self.guests.get_mut(id).unwrap().moving = None;
            }
            Stage::Dropping => {
                self.report(target, migration, "dropped").await.expect(200);
                self.guests.get_mut(id).unwrap().moving = None;
            }
        }
        // Told twice, it changes nothing.
        if self.dice.percent(20) {
            self.report(source, migration, "copying").await.expect(200);
        }
        format!("{id} was {stage:?} and went on")
    }

    fn stage_of(&mut self, id: &str, stage: Stage) {
        self.guests.get_mut(id).unwrap().moving.as_mut().unwrap().stage = stage;
    }

    /// It runs on the target: either agent says so, or it is seen there.
    async fn switch(&mut self, id: &str, moving: &Moving) {
        let Moving { id: migration, source, target, .. } = moving;
        match self.dice.roll(3) {
            0 => drop(self.report(source, migration, "switched").await.expect(200)),
            1 => drop(self.report(target, migration, "switched").await.expect(200)),
            _ => {
                let seen = self.stage.look().await;
                let held = seen.claims.iter().find(|it| it.instance == id && it.node == *target);
                let fence = held.unwrap().fence;
                let running = json!([{ "instance": id, "fence": fence, "state": "running" }]);
                let body = json!({ "running": running });
                let path = format!("/v1/nodes/{target}/heartbeat");
                self.stage.post(&path, &body).await.expect(200);
            }
        }
        let seen = self.stage.look().await;
        let primary = seen.claims.iter().find(|it| it.instance == id && it.role == "primary");
        let guest = self.guests.get_mut(id).unwrap();
        guest.node.clone_from(target);
        // Headroom ends with the fence; what it grew into before goes with it.
        guest.fence = primary.unwrap().fence;
        guest.headroom = None;
    }

    /// A move fails or is called off, at whatever stage it is.
    pub(crate) async fn end_move(&mut self, id: &str) -> String {
        let Some(moving) = self.guests[id].moving.clone() else { return self.begin_move(id).await };
        let Moving { id: migration, source, target, stage, .. } = &moving;
        let is_late = matches!(stage, Stage::Switched | Stage::Dropping);
        let kind = self.dice.roll(3);
        let by_target = kind == 1;
        match kind {
            0 => drop(self.report(source, migration, "failed").await.expect(200)),
            1 => drop(self.report(target, migration, "failed").await.expect(200)),
            _ => {
                let path = format!("/v1/migrations/{migration}/cancel");
                let reply = self.stage.post(&path, &json!({})).await;
                let accepted = if *stage == Stage::Switched { 409 } else { 200 };
                drop(reply.expect(accepted));
            }
        }
        if !is_late {
            let guest = self.guests.get_mut(id).unwrap();
            // Only the target's agent knows that nothing is there.
            if by_target {
                guest.moving = None;
            } else {
                self.stage_of(id, Stage::Dropping);
            }
            if self.dice.percent(30) {
                self.report(source, migration, "switched").await.problem(409, "called_off");
            }
        }
        format!("{id} was {stage:?} and was called off ({kind})")
    }

    /// It is gone, also while it moves: what is left of the move is cleaned up.
    pub(crate) async fn release(&mut self, id: &str) -> String {
        let guest = self.guests.remove(id).unwrap();
        let body = json!({ "confirmed": true, "reason": "deleted" });
        self.stage.post(&format!("/v1/claims/{id}/release"), &body).await.expect(200);
        let Some(Moving { id: migration, source, target, stage, .. }) = guest.moving else {
            return format!("{id} released");
        };
        match stage {
            Stage::Switched => drop(self.report(&source, &migration, "cleaned_up").await),
            Stage::Dropping => drop(self.report(&target, &migration, "dropped").await),
            Stage::Held | Stage::Copying => {
                let path = format!("/v1/migrations/{migration}");
                let stage = &self.stage;
                stage
                    .until("a move of what is gone fails", async || {
                        stage.get(&path).await["state"] == "failed"
                    })
                    .await;
                self.report(&target, &migration, "dropped").await.expect(200);
            }
        }
        format!("{id} released while {stage:?}")
    }
}
