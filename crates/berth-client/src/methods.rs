//! The calls that programs make most, by name.

use berth_api::engine::{InstanceId, NodeFacts, NodeId};
use berth_api::{
    ApplyRebalance, AskPermit, AssignmentList, Claim, ClaimStatus, Drain, DrainNode, FencedRequest,
    Heartbeat, HeartbeatResponse, Migration, MigrationReport, Node, NodeStateChange, Page, Permit,
    PlaceRequest, Placed, PlanRebalance, Rebalance, RebalanceApplied, ReleaseClaim, RenewClaim,
    SetBounds, StartMigration, Ticket,
};
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Client, ClientError};

/// What became of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PlaceOutcome {
    /// Granted, or in a dry run would be.
    Placed(Placed),
    /// It waits for room.
    Waiting(Box<Ticket>),
}

impl Client {
    /// Places instances.
    ///
    /// # Errors
    /// A refusal is a problem with the whole explanation.
    pub async fn place(&self, request: &PlaceRequest) -> Result<PlaceOutcome, ClientError> {
        self.post("/v1/placements", request).await
    }

    /// All items of a list, page after page.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn all<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, ClientError> {
        let (mut items, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut query = query.to_vec();
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page<T> = self.get(path, &query).await?;
            items.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(items);
            }
        }
    }

    /// Registers a node, or states its facts anew.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn put_node(&self, facts: &NodeFacts) -> Result<Node, ClientError> {
        self.put(&format!("/v1/nodes/{}", escape(facts.id.as_str())), facts).await
    }

    /// Which moves would bring nodes closer to a goal. Nothing changes.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn plan_rebalance(&self, asked: &PlanRebalance) -> Result<Rebalance, ClientError> {
        self.post("/v1/rebalance/plan", asked).await
    }

    /// Begins moves, as many as limits allow at once.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn apply_rebalance(
        &self,
        asked: &ApplyRebalance,
    ) -> Result<RebalanceApplied, ClientError> {
        self.post("/v1/rebalance/apply", asked).await
    }

    /// Gives a sign of life.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn heartbeat(
        &self,
        node: &NodeId,
        beat: &Heartbeat,
    ) -> Result<HeartbeatResponse, ClientError> {
        self.post(&format!("/v1/nodes/{}/heartbeat", escape(node.as_str())), beat).await
    }

    /// What should be on a node.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn assignments(&self, node: &NodeId) -> Result<AssignmentList, ClientError> {
        self.get(&format!("/v1/nodes/{}/assignments", escape(node.as_str())), &[]).await
    }

    /// Changes a node's state: `cordon` or `uncordon`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn set_node_state(
        &self,
        node: &NodeId,
        verb: &str,
        reason: Option<&str>,
    ) -> Result<Node, ClientError> {
        let body = NodeStateChange { reason: reason.map(str::to_owned) };
        self.post(&format!("/v1/nodes/{}/{verb}", escape(node.as_str())), &body).await
    }

    /// Begins to empty a node, or changes how.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn drain(&self, node: &NodeId, how: &DrainNode) -> Result<Drain, ClientError> {
        self.post(&format!("/v1/nodes/{}/drain", escape(node.as_str())), how).await
    }

    /// One claim.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn claim(&self, instance: InstanceId) -> Result<Claim, ClientError> {
        self.get(&format!("/v1/claims/{instance}"), &[]).await
    }

    /// Gives a held claim more time.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn renew(
        &self,
        instance: InstanceId,
        fence: i64,
        lease_s: Option<u32>,
    ) -> Result<ClaimStatus, ClientError> {
        self.post(&format!("/v1/claims/{instance}/renew"), &RenewClaim { fence, lease_s }).await
    }

    /// Takes a held claim up.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn bind(&self, instance: InstanceId, fence: i64) -> Result<ClaimStatus, ClientError> {
        self.post(&format!("/v1/claims/{instance}/bind"), &FencedRequest { fence }).await
    }

    /// Says that a bound instance runs.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn activate(
        &self,
        instance: InstanceId,
        fence: i64,
    ) -> Result<ClaimStatus, ClientError> {
        self.post(&format!("/v1/claims/{instance}/activate"), &FencedRequest { fence }).await
    }

    /// Ends a claim.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn release(
        &self,
        instance: InstanceId,
        release: &ReleaseClaim,
    ) -> Result<ClaimStatus, ClientError> {
        self.post(&format!("/v1/claims/{instance}/release"), release).await
    }

    /// How large an instance may be, as it was last answered.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn permit(&self, instance: InstanceId) -> Result<Permit, ClientError> {
        self.get(&format!("/v1/instances/{instance}/permit"), &[]).await
    }

    /// Asks how large an instance may be.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn ask_permit(
        &self,
        instance: InstanceId,
        asked: &AskPermit,
    ) -> Result<Permit, ClientError> {
        self.post(&format!("/v1/instances/{instance}/permit"), asked).await
    }

    /// Changes between which sizes an instance may be.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn set_bounds(
        &self,
        instance: InstanceId,
        bounds: &SetBounds,
    ) -> Result<Permit, ClientError> {
        self.put(&format!("/v1/instances/{instance}/bounds"), bounds).await
    }

    /// Moves an instance while it runs.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn migrate(
        &self,
        instance: InstanceId,
        how: &StartMigration,
    ) -> Result<Migration, ClientError> {
        self.post(&format!("/v1/instances/{instance}/migrate"), how).await
    }

    /// One migration.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn migration(&self, id: &str) -> Result<Migration, ClientError> {
        self.get(&format!("/v1/migrations/{}", escape(id)), &[]).await
    }

    /// Calls a migration off.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn cancel_migration(&self, id: &str) -> Result<Migration, ClientError> {
        let nothing = serde_json::Map::new();
        self.post(&format!("/v1/migrations/{}/cancel", escape(id)), &nothing).await
    }

    /// Reports what an agent has done of a migration.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn report_migration(
        &self,
        node: &NodeId,
        report: &MigrationReport,
    ) -> Result<Migration, ClientError> {
        self.post(&format!("/v1/nodes/{}/migrations", escape(node.as_str())), report).await
    }

    /// Changes part of a node's facts, by a merge patch.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn patch_node(
        &self,
        node: &NodeId,
        patch: &serde_json::Value,
        if_match: Option<&str>,
    ) -> Result<Node, ClientError> {
        let path = format!("/v1/nodes/{}", escape(node.as_str()));
        Ok(self.send_json(Method::PATCH, &path, patch, if_match).await?.value)
    }
}

/// A name as part of a path.
#[must_use]
pub fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
