//! The steps of agents that ask for permits.

use std::time::Duration;

use serde_json::{Value, json};

use crate::auditor::Answered;
use crate::common::Reply;
use crate::model::Model;
use crate::picture::Pair;

/// What is asked for in addition to the size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PermitOptions {
    pub(crate) last_permit: Option<Pair>,
    pub(crate) headroom: Option<Pair>,
}

impl Model {
    fn request(&self, id: &str, seq: u64, wish: Pair, options: PermitOptions) -> Value {
        let mut body = json!({ "resources": wish.json(), "seq": seq });
        if let Some(last) = options.last_permit {
            body["last_permit"] = last.json();
        }
        if let Some(headroom) = options.headroom {
            body["headroom"] = headroom.json();
        }
        if let Some(heard) = self.guests[id].answer.as_ref().filter(|_| seq.is_multiple_of(2)) {
            body["heard"] = heard["seq"].clone();
        }
        if seq.is_multiple_of(3) {
            body["fence"] = json!(self.guests[id].fence);
        }
        body
    }

    async fn send(&self, id: &str, body: &Value) -> Reply {
        self.stage.post(&format!("/v1/instances/{id}/permit"), body).await
    }

    /// The next request of an instance: what shrinks has shrunk before it says so.
    fn next(&mut self, id: &str, wish: Pair) -> u64 {
        let guest = self.guests.get_mut(id).unwrap();
        guest.uses = guest.uses.each(wish, i64::min);
        guest.sent += 1;
        guest.sent
    }

    /// Takes an answer in as an agent does, and has it judged.
    fn heard(&mut self, id: &str, wish: Pair, seq: u64, answer: &Value) {
        assert_eq!(answer["seq"], seq, "{answer}");
        assert_eq!(Pair::read(&answer["wanted"]), wish, "{answer}");
        let grows = self.dice.percent(80);
        let guest = self.guests.get_mut(id).unwrap();
        guest.hear(answer);
        let most = guest.holds;
        if grows {
            guest.uses = most;
        }
        self.answers.push(Answered {
            instance: id.to_owned(),
            wanted: wish,
            permit: most,
            limited_by: answer["limited_by"].as_str().map(str::to_owned),
            unit: guest.unit.unwrap(),
        });
    }

    pub(crate) async fn ask(&mut self, id: &str, wish: Pair, options: PermitOptions) -> String {
        let seq = self.next(id, wish);
        let body = self.request(id, seq, wish, options);
        let reply = self.send(id, &body).await;
        let done = || format!("{}\n{body}: {}", self.lately(), reply.text);
        assert_eq!(reply.status, 200, "{}", done());
        let answer = reply.json();
        assert_ne!(answer["repeated"], true, "{}", done());
        self.heard(id, wish, seq, &answer);
        format!("{id} asked {seq}: {wish:?}, {options:?}, got {}", answer["permit"])
    }

    /// Wants more, less, the same, or more of one and less of the other.
    pub(crate) async fn ask_anything(&mut self, id: &str) -> String {
        let (up, down, same) = ((1, 8), (-6, -1), (0, 0));
        let kinds = [(up, up), (up, up), (down, down), (same, same), (up, down), (same, up)];
        let (cpu, memory) = self.dice.pick(&kinds);
        let wish = self.guests[id].wish(&mut self.dice, cpu, memory);
        let mut options = PermitOptions::default();
        if self.dice.percent(30) {
            let units = self.dice.between(1, 4);
            options.headroom = Some(Pair::new(250 * units, 1024 * units));
        }
        // An agent may always say what it holds.
        if self.dice.percent(25) {
            options.last_permit = Some(self.guests[id].holds);
        }
        self.ask(id, wish, options).await
    }

    /// An old request comes again, whatever it says: the stored answer is told.
    pub(crate) async fn repeat(&mut self, id: &str) -> String {
        let guest = &self.guests[id];
        let Some(stored) = guest.answer.clone() else { return "nothing to repeat".to_owned() };
        let (sent, unit) = (guest.sent, Pair::new(250, 1024));
        let seq = self.dice.between(1, i64::try_from(sent).unwrap()).unsigned_abs();
        let wish = self.guests[id].wish(&mut self.dice, (-4, 8), (-4, 8));
        let options = PermitOptions { headroom: Some(unit), ..PermitOptions::default() };
        let answer = self.send(id, &self.request(id, seq, wish, options)).await;
        // Its fence may be an old one, if it has moved since.
        let answer = answer.expect(200).json();
        assert_eq!(answer["repeated"], true, "{answer}");
        for field in ["seq", "permit", "wanted", "compute_unit"] {
            assert_eq!(answer[field], stored[field], "{field} of {answer}");
        }
        // What was denied on the node that it left is no longer said.
        if answer["fence"] == stored["fence"] {
            assert_eq!(answer["capacity_pressure"], stored["capacity_pressure"], "{answer}");
        }
        format!("{id} repeated {seq} of {sent}")
    }

    /// A wish that means nothing changes nothing.
    pub(crate) async fn ask_nonsense(&mut self, id: &str) -> String {
        let guest = &self.guests[id];
        let seq = guest.sent + 1;
        let beyond = [
            Pair::new(guest.max.cpu.max(guest.holds.cpu) + 1000, guest.holds.memory),
            Pair::new(guest.holds.cpu, guest.min.memory.min(guest.holds.memory) - 1),
        ];
        let wish = self.dice.pick(&beyond);
        let body = self.request(id, seq, wish, PermitOptions::default());
        let reply = self.send(id, &body).await;
        assert!(reply.status.is_client_error(), "{wish:?}: {}", reply.text);
        format!("{id} asked for {wish:?}, which is nonsense")
    }

    /// A request is sent and its reply is lost, or it is not even known whether it came through.
    pub(crate) async fn lose_reply(&mut self, id: &str) -> String {
        let wish = self.guests[id].wish(&mut self.dice, (-3, 8), (-3, 8));
        let seq = self.next(id, wish);
        let body = self.request(id, seq, wish, PermitOptions::default());
        let torn = self.dice.percent(50);
        if torn {
            let soon = Duration::from_micros(self.dice.between(0, 4000).unsigned_abs());
            let _ = tokio::time::timeout(soon, self.send(id, &body)).await;
        } else {
            self.send(id, &body).await.expect(200);
            self.audit().await;
        }
        if self.dice.percent(15) {
            self.stage.restart().await;
        }
        // A request that was given up may still arrive; the next one waits for it in line. An agent
        // that was told another unit meanwhile, and did not hear it, could ask for nonsense.
        let known = self.told(id) == self.guests[id].unit;
        if torn || !known || self.dice.percent(50) {
            let answer = self.send(id, &body).await.expect(200).json();
            assert!(torn || answer["repeated"] == true, "{answer}");
            self.heard(id, wish, seq, &answer);
            return format!("{id} asked {seq}: {wish:?} twice (torn: {torn})");
        }
        let holds = self.guests[id].holds;
        let options = PermitOptions { last_permit: Some(holds), ..PermitOptions::default() };
        // What it wants now is a size that both of what it may have been told allow.
        let told = self.ask(id, wish, options).await;
        format!("{id} heard nothing of {seq}; {told}")
    }

    /// Berth cannot be reached; an agent that may grows all the same, and tells afterwards.
    pub(crate) async fn outage(&mut self, id: &str) -> String {
        let Some(most) = self.guests[id].headroom else {
            let wish = self.guests[id].wish(&mut self.dice, (0, 0), (0, 0));
            let headroom = Some(Pair::new(1000, 4096));
            return self
                .ask(id, wish, PermitOptions { headroom, ..PermitOptions::default() })
                .await;
        };
        let grown = if self.dice.percent(50) {
            most
        } else {
            let holds = self.guests[id].holds;
            Pair::new(
                self.dice.between(holds.cpu, most.cpu),
                self.dice.between(holds.memory, most.memory),
            )
        };
        self.guests.get_mut(id).unwrap().uses = grown;
        self.audit().await;
        if self.dice.percent(30) {
            self.stage.restart().await;
            self.audit().await;
        }
        let seq = self.next(id, grown);
        let options = PermitOptions { last_permit: Some(grown), ..PermitOptions::default() };
        let answer = self.send(id, &self.request(id, seq, grown, options)).await.expect(200).json();
        assert_eq!(Pair::read(&answer["permit"]), grown, "it had it already: {answer}");
        self.heard(id, grown, seq, &answer);
        format!("{id} grew to {grown:?} in an outage")
    }

    pub(crate) async fn set_bounds(&mut self, id: &str) -> String {
        let min = Pair::new(self.dice.between(1, 8) * 100, self.dice.between(1, 8) * 512);
        let max = min + Pair::new(self.dice.between(0, 24) * 250, self.dice.between(0, 24) * 1024);
        let body = json!({ "min": min.json(), "max": max.json() });
        let reply = self.stage.put(&format!("/v1/instances/{id}/bounds"), &body).await;
        let guest = self.guests.get_mut(id).unwrap();
        // One that was found and has not spoken is charged for its maximum, which may not fit, and
        // which cannot change while it moves.
        if reply.status == 409 && guest.answer.is_none() {
            let frozen = guest.moving.is_some() && reply.code() == "migrating";
            assert!(frozen || reply.code().starts_with("no_capacity"), "{}", reply.text);
            return format!("{id} may not be from {min:?} to {max:?}: {}", reply.code());
        }
        drop(reply.expect(200));
        (guest.min, guest.max) = (min, max);
        // Until it speaks, one that was found counts with all it may grow to.
        if guest.answer.is_none() {
            self.excuse.found_on = Some(guest.node.clone());
        }
        format!("{id} may be from {min:?} to {max:?}")
    }
}
