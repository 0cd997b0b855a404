//! Lists: of the newest state, of the state at a version, in consistent pages.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::api::Api;
use crate::failure::{Cause, Failure};
use crate::object::{Key, Object};
use crate::selector::Selection;
use crate::store::{TableId, lock};
use crate::view;

/// The parameters of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListQuery {
    pub(crate) selection: Selection,
    pub(crate) limit: usize,
    pub(crate) go_on: String,
    pub(crate) version: String,
    pub(crate) version_match: String,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) timeout_s: Option<u64>,
    pub(crate) initial_events: Option<bool>,
    /// Only the metadata is requested.
    pub(crate) metadata_only: bool,
}

impl ListQuery {
    /// Rejects combinations that the API does not define.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let refuse = |field: &str, text: &str| {
            let cause = Cause::forbidden(field, text);
            Err(Failure::invalid_kind("meta.k8s.io", "ListOptions", "", &[cause]))
        };
        if self.watch {
            return self.check_watch();
        }
        if self.initial_events.is_some() {
            return refuse("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        if !self.version_match.is_empty() {
            if !["Exact", "NotOlderThan"].contains(&self.version_match.as_str()) {
                let known = ["Exact", "NotOlderThan"];
                let cause = Cause::unsupported("resourceVersionMatch", &self.version_match, &known);
                return Err(Failure::invalid_kind("meta.k8s.io", "ListOptions", "", &[cause]));
            }
            if self.version.is_empty() {
                let text = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                return refuse("resourceVersionMatch", text);
            }
            if !self.go_on.is_empty() {
                let text = "resourceVersionMatch is forbidden when continue is provided";
                return refuse("resourceVersionMatch", text);
            }
            if self.version_match == "Exact" && self.version == "0" {
                let text = "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"";
                return refuse("resourceVersionMatch", text);
            }
        }
        if !self.go_on.is_empty() && !self.version.is_empty() && self.version != "0" {
            let text = "specifying resource version is not allowed when using continue";
            return Err(Failure::bad_request(text));
        }
        Ok(())
    }

    fn check_watch(&self) -> Result<(), Failure> {
        let refuse = |field: &str, text: &str| {
            let cause = Cause::forbidden(field, text);
            Err(Failure::invalid_kind("meta.k8s.io", "ListOptions", "", &[cause]))
        };
        if self.initial_events.is_some() {
            if self.version_match != "NotOlderThan" {
                let text =
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                return refuse("resourceVersionMatch", text);
            }
        } else if !self.version_match.is_empty() {
            let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                        provided";
            return refuse("resourceVersionMatch", text);
        }
        Ok(())
    }

    /// The version as a number, if it was given.
    pub(crate) fn version(&self) -> Result<Option<u64>, Failure> {
        if self.version.is_empty() {
            return Ok(None);
        }
        self.version.parse().map(Some).map_err(|_| {
            let value = json!(self.version);
            let cause = Cause::invalid("resourceVersion", &value, "must be a number");
            Failure::invalid_kind("meta.k8s.io", "ListOptions", "", &[cause])
        })
    }
}

/// Where a paged list continues.
struct Token {
    /// 0: with the current state, because the first one is lost.
    version: u64,
    after: Key,
}

impl Token {
    fn write(&self) -> String {
        let text = json!({
            "v": "meta.k8s.io/v1", "rv": self.version,
            "namespace": &*self.after.namespace, "name": &*self.after.name,
        });
        text.to_string().bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let digits =
            |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digits).collect();
        let value: Value = serde_json::from_slice(&bytes?).ok()?;
        let after = Key::new(value["namespace"].as_str()?, value["name"].as_str()?);
        Some(Self { version: value["rv"].as_u64()?, after })
    }
}

/// A list, or a page of one.
pub(crate) struct ListPage {
    pub(crate) items: Vec<Arc<Object>>,
    pub(crate) version: u64,
    go_on: Option<String>,
    remaining: Option<usize>,
}

impl ListPage {
    /// The page with only the metadata of its items.
    pub(crate) fn metadata_only(mut self) -> Self {
        self.items = self.items.iter().map(|object| view::metadata(object)).collect();
        self
    }

    /// The list as it is sent.
    pub(crate) fn encode(&self, resource: &crate::resource::Resource) -> Bytes {
        let mut metadata = json!({ "resourceVersion": self.version.to_string() });
        if let Some(token) = &self.go_on {
            metadata["continue"] = json!(token);
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        let head = format!(
            "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
            resource.kind,
            resource.api_version()
        );
        let mut out = BytesMut::with_capacity(head.len() + self.items.len() * 2048);
        out.put_slice(head.as_bytes());
        for (at, object) in self.items.iter().enumerate() {
            if at > 0 {
                out.put_slice(b",");
            }
            object.write_item(&mut out);
        }
        out.put_slice(b"]}\n");
        out.freeze()
    }
}

impl Api {
    /// Handles a list request.
    pub(crate) fn list(&self, id: TableId, query: &ListQuery) -> Result<ListPage, Failure> {
        query.check()?;
        let (state, version, after) = self.state_for(id, query)?;
        let resource = self.resource(id);
        // The watch cache, which answers "any version", has no pages.
        let paged = query.limit > 0 && query.version != "0";
        let start = match &after {
            Some(after) => state.partition_point(|object| object.key() <= *after),
            None => 0,
        };
        let mut items = Vec::new();
        let mut rest = state.get(start..).unwrap_or_default().iter();
        let (mut more, mut last) = (false, None);
        for object in rest.by_ref() {
            let object = view::as_resource(&resource, object);
            if !query.selection.matches(&object.value) {
                continue;
            }
            if paged && items.len() == query.limit {
                more = true;
                break;
            }
            last = Some(object.key());
            items.push(object);
        }
        let mut page = ListPage { items, version, go_on: None, remaining: None };
        if more && let Some(after) = last {
            page.go_on = Some(Token { version, after }.write());
            // The real server does not count the items that a selector matches either.
            if !query.selection.has_selector() {
                let inside = |object: &&Arc<Object>| query.selection.matches(&object.value);
                page.remaining = Some(rest.filter(inside).count() + 1);
            }
            let moment = (id, query.selection.namespace.clone(), version);
            lock(&self.snapshots).insert(moment, state);
        }
        Ok(page)
    }

    /// The state of a list, its version, and the key after which the page starts.
    #[allow(clippy::type_complexity, reason = "three things that are used at once and only here")]
    fn state_for(
        &self,
        id: TableId,
        query: &ListQuery,
    ) -> Result<(Arc<Vec<Arc<Object>>>, u64, Option<Key>), Failure> {
        if !query.go_on.is_empty() {
            return self.state_of_token(id, query);
        }
        let wanted = query.version()?;
        let store = self.store();
        let home = store.backing_table(id);
        let current = store.version();
        match wanted {
            Some(version) if version > current => Err(Failure::too_large_version(version, current)),
            Some(version) if query.version_match == "Exact" => {
                let state = store.state_at(home, version)?;
                Ok((Arc::new(state), version, None))
            }
            _ => {
                let namespace = query.selection.namespace.as_deref();
                let all = store.iter(home, namespace).map(|(_, object)| Arc::clone(object));
                Ok((Arc::new(all.collect()), current, None))
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "three things that are used at once and only here")]
    fn state_of_token(
        &self,
        id: TableId,
        query: &ListQuery,
    ) -> Result<(Arc<Vec<Arc<Object>>>, u64, Option<Key>), Failure> {
        let token = Token::read(&query.go_on).ok_or_else(|| {
            Failure::bad_request(
                "continue key is not valid: encoded in a form that this server did not make",
            )
        })?;
        let store = self.store();
        let home = store.backing_table(id);
        if token.version == 0 {
            let all = store.iter(home, None).map(|(_, object)| Arc::clone(object)).collect();
            return Ok((Arc::new(all), store.version(), Some(token.after)));
        }
        let moment = (id, query.selection.namespace.clone(), token.version);
        if let Some(state) = lock(&self.snapshots).get(&moment) {
            return Ok((Arc::clone(state), token.version, Some(token.after)));
        }
        match store.state_at(home, token.version) {
            Ok(state) => Ok((Arc::new(state), token.version, Some(token.after))),
            Err(_) => {
                let text = "The provided continue parameter is too old to display a consistent \
                            list result. You can start a new list without the continue parameter, \
                            or use the continue token in this response to retrieve the remainder \
                            of the results. Continuing with the provided token results in an \
                            inconsistent list - objects that were created, modified, or deleted \
                            between the time the first chunk was returned and now may show up in \
                            the list.";
                let go_on = Token { version: 0, after: token.after }.write();
                Err(Failure { go_on: Some(go_on), ..Failure::expired(text) })
            }
        }
    }
}
