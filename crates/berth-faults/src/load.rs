//! Clients that claim, bind, resize, move and release, each waiting for its answer, and telling of
//! every request before it goes out and of every answer when it is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use berth_engine::InstanceId;
use berth_ledger::Ledger;
use fastrand::Rng;

use crate::fleet::{NODES, Nodes};
use crate::operation::{ClaimSpec, Message, Operation, Reply};

/// Between an error and the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// Claims that a client keeps before it would rather do something with them.
const KEPT: usize = 12;

/// A load on one ledger.
pub struct Load {
    /// The ledger.
    pub ledger: Ledger,
    /// Its nodes.
    pub nodes: Nodes,
    /// Where the clients' choices come from.
    pub seed: u64,
    /// Which run it is: instances of different runs differ.
    pub round: u32,
    /// Clients.
    pub threads: u32,
    /// A fault for the checker to find: acknowledge before it is committed.
    pub acknowledges_early: bool,
}

/// A claim that a client has.
struct LoadClaim {
    spec: ClaimSpec,
    fence: i64,
}

struct Client<'a> {
    load: &'a Load,
    thread: u32,
    random: Rng,
    held: Vec<LoadClaim>,
    requests: u64,
    instances: u64,
}

impl Load {
    /// Runs until stopped. A request that fails is sent again, as it was.
    pub fn run(&self, stop: &AtomicBool, send: &(dyn Fn(Message) + Sync)) {
        thread::scope(|scope| {
            for thread in 0..self.threads {
                scope.spawn(move || {
                    let seed = self.seed ^ (u64::from(self.round) << 32) ^ u64::from(thread);
                    let random = Rng::with_seed(seed);
                    let held = Vec::new();
                    let mut client =
                        Client { load: self, thread, random, held, requests: 0, instances: 0 };
                    while !stop.load(Ordering::Relaxed) {
                        client.step(stop, send);
                    }
                });
            }
        });
    }
}

impl Client<'_> {
    fn step(&mut self, stop: &AtomicBool, send: &(dyn Fn(Message) + Sync)) {
        let (thread, load) = (self.thread, self.load);
        let operation = self.choose();
        send(Message::Started { thread, operation: operation.clone() });
        if load.acknowledges_early {
            send(Message::Done { thread });
        }
        loop {
            match operation.perform(&load.ledger, &load.nodes) {
                Reply::Done(fences) => {
                    if !load.acknowledges_early {
                        send(Message::Done { thread });
                    }
                    return self.record(&operation, &fences);
                }
                // The claims that it names stay out of use.
                Reply::Refused(why) => return send(Message::Refused { thread, why }),
                Reply::Failed { kind, why } => send(Message::Failed { thread, kind, why }),
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(PAUSE);
        }
    }

    fn request(&mut self) -> String {
        self.requests += 1;
        format!("r{}-{}-{}", self.load.round, self.thread, self.requests)
    }

    fn choose(&mut self) -> Operation {
        let commits = self.held.len() < 2 || self.random.usize(..KEPT * 2) > self.held.len();
        if commits {
            let claims = (0..self.random.usize(1..=5)).map(|_| self.spec()).collect();
            return Operation::Commit { request: self.request(), claims };
        }
        let request = self.request();
        let place = self.random.usize(..self.held.len());
        let (node, size) = (self.random.usize(..NODES), self.random.u32(1..=8));
        let held = &self.held[place];
        let (mut to, fence, instance) = (held.spec.clone(), held.fence, held.spec.instance);
        match self.random.u32(..10) {
            0..=3 => Operation::Release { request, instance, fence },
            4 | 5 if node != to.node => {
                to.node = node;
                Operation::Move { request, fence, to }
            }
            6 | 7 => {
                (to.cpu_milli, to.memory_mib) = (size * 100, size * 128);
                Operation::Resize { request, fence, to }
            }
            _ => Operation::Bind { instance, fence },
        }
    }

    fn spec(&mut self) -> ClaimSpec {
        self.instances += 1;
        let number = (u128::from(self.load.round) << 96)
            | (u128::from(self.thread) << 64)
            | u128::from(self.instances);
        let size = self.random.u32(1..=8);
        ClaimSpec {
            instance: InstanceId::from_u128(number),
            node: self.random.usize(..NODES),
            cpu_milli: size * 100,
            memory_mib: size * 128,
        }
    }

    fn record(&mut self, operation: &Operation, fences: &[i64]) {
        match operation {
            Operation::Commit { claims, .. } => {
                for (spec, fence) in claims.iter().zip(fences) {
                    self.held.push(LoadClaim { spec: spec.clone(), fence: *fence });
                }
            }
            Operation::Release { instance, .. } => {
                self.held.retain(|held| held.spec.instance != *instance);
            }
            Operation::Move { to, .. } | Operation::Resize { to, .. } => {
                let instance = to.instance;
                let held = self.held.iter_mut().find(|held| held.spec.instance == instance);
                if let Some((held, fence)) = held.zip(fences.first()) {
                    held.spec = to.clone();
                    held.fence = *fence;
                }
            }
            Operation::Bind { .. } => {}
        }
    }
}
