//! The calls that programs make most, by name.

use berth_api::engine::{InstanceId, NodeFacts, NodeId};
use berth_api::{
    ApplyRebalance, AskPermit, AssignmentList, Claim, ClaimStatus, Drain, DrainNode, FencedRequest,
    Heartbeat, HeartbeatResponse, Migration, MigrationReport, Node, NodeStateChange, Page, Permit,
    PlaceRequest, Placed, PlanRebalance, Rebalance, RebalanceApplied, ReleaseClaim, RenewClaim,
    SetBounds, StartMigration, Ticket, UnsetFacts,
};
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Client, ClientError};

/// The outcome of a placement request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PlaceOutcome {
    /// It was granted, or would be in a dry run.
    Placed(Placed),
    /// It waits for room.
    Waiting(Box<Ticket>),
}

impl Client {
    /// Places instances.
    ///
    /// # Errors
    /// A refusal is a problem that has the whole explanation.
    pub async fn place(&self, request: &PlaceRequest) -> Result<PlaceOutcome, ClientError> {
        self.post("/v1/placements", request).await
    }

    /// Gets all items of a list, page by page.
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

    /// Registers a node, or replaces its facts: as an agent what it reports, as an operator what is
    /// in effect.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn put_node(&self, facts: &NodeFacts) -> Result<Node, ClientError> {
        self.put(&format!("/v1/nodes/{}", escape(facts.id.as_str())), facts).await
    }

    /// Registers a node, or replaces what it reports, whichever role the token has. What an operator
    /// set stays.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn report_node(&self, facts: &NodeFacts) -> Result<Node, ClientError> {
        self.put(&format!("/v1/nodes/{}?as=reported", escape(facts.id.as_str())), facts).await
    }

    /// Plans moves towards a goal, and changes nothing.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn plan_rebalance(&self, asked: &PlanRebalance) -> Result<Rebalance, ClientError> {
        self.post("/v1/rebalance/plan", asked).await
    }

    /// Starts moves, within the limits.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn apply_rebalance(
        &self,
        asked: &ApplyRebalance,
    ) -> Result<RebalanceApplied, ClientError> {
        self.post("/v1/rebalance/apply", asked).await
    }

    /// Sends a heartbeat.
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

    /// Gets the instances that should be on a node.
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

    /// Starts to drain a node, or changes how.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn drain(&self, node: &NodeId, how: &DrainNode) -> Result<Drain, ClientError> {
        self.post(&format!("/v1/nodes/{}/drain", escape(node.as_str())), how).await
    }

    /// Gets a claim.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn claim(&self, instance: InstanceId) -> Result<Claim, ClientError> {
        self.get(&format!("/v1/claims/{instance}"), &[]).await
    }

    /// Extends the lease of a held claim.
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

    /// Binds a held claim.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn bind(&self, instance: InstanceId, fence: i64) -> Result<ClaimStatus, ClientError> {
        self.post(&format!("/v1/claims/{instance}/bind"), &FencedRequest { fence }).await
    }

    /// Reports that a bound instance runs.
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

    /// Releases a claim.
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

    /// Gets the last permit of an instance.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn permit(&self, instance: InstanceId) -> Result<Permit, ClientError> {
        self.get(&format!("/v1/instances/{instance}/permit"), &[]).await
    }

    /// Requests a size for an instance.
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

    /// Sets the bounds of an instance's size.
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

    /// Moves a running instance to another node.
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

    /// Gets a migration.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn migration(&self, id: &str) -> Result<Migration, ClientError> {
        self.get(&format!("/v1/migrations/{}", escape(id)), &[]).await
    }

    /// Cancels a migration.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn cancel_migration(&self, id: &str) -> Result<Migration, ClientError> {
        let nothing = serde_json::Map::new();
        self.post(&format!("/v1/migrations/{}/cancel", escape(id)), &nothing).await
    }

    /// Reports the progress of a migration, as an agent.
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

    /// Changes facts of a node, with a merge patch.
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

    /// Gives facts back that an operator set: what is reported is in effect again.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn unset_facts(
        &self,
        node: &NodeId,
        fields: &UnsetFacts,
    ) -> Result<Node, ClientError> {
        self.post(&format!("/v1/nodes/{}/unset", escape(node.as_str())), fields).await
    }
}

/// Escapes a name as a segment of a path.
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
