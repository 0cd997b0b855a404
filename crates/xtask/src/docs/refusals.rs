//! Every stable code that a caller may be refused with, what it means and what to do.
//!
//! The engine's codes come from its filters. The ledger's are listed here, since a chore should not
//! have to build a database; a test reads them out of its source.

use std::fmt::Write as _;

use berth_engine::filter::FILTERS;

/// A code of the ledger, what it means and what to do.
struct Code {
    code: &'static str,
    means: &'static str,
    remedy: &'static str,
}

/// A plan met a change: the server plans again, so a client sees these only when that did not help.
const CONFLICTS: [Code; 12] = [
    Code {
        code: "unknown_node",
        means: "the node of a plan is not registered, or no longer",
        remedy: "ask again; if it names a node of its own choice, register that node",
    },
    Code {
        code: "node_changed",
        means: "the node's facts or state changed since the plan was made",
        remedy: "ask again",
    },
    Code {
        code: "rules_changed",
        means: "a claim with a hard rule about others landed on the node since the plan was made",
        remedy: "ask again",
    },
    Code {
        code: "policy_changed",
        means: "another policy was put in force since the plan was made",
        remedy: "ask again",
    },
    Code {
        code: "secrets_changed",
        means: "the secrets of the environment were changed or removed since the plan was made",
        remedy: "ask again",
    },
    Code {
        code: "workload_changed",
        means: "the workload was changed or removed since the plan was made",
        remedy: "ask again",
    },
    Code {
        code: "too_few_running",
        means: "stopping the member would leave fewer of its workload running than must run",
        remedy: "wait until others run, then ask again",
    },
    Code {
        code: "unknown_group",
        means: "the group does not exist",
        remedy: "create the group, or leave it out",
    },
    Code {
        code: "unknown_volume",
        means: "the volume does not exist",
        remedy: "create the volume, or leave it out",
    },
    Code {
        code: "already_placed",
        means: "the instance already has a claim in this role",
        remedy: "release it first, or use a new instance id",
    },
    Code {
        code: "slot_taken",
        means: "another instance sits in that slot",
        remedy: "release that instance, or choose another slot",
    },
    Code {
        code: "victim_changed",
        means: "an instance that was to be preempted has stopped, moved or started to leave since",
        remedy: "ask for a new preemption proposal, and apply that one",
    },
];

/// Planning again would not help.
const LIMITS: [Code; 7] = [
    Code {
        code: "quota_exceeded",
        means: "the tenant would use more than its quota allows",
        remedy: "ask for less, release instances, or raise the quota",
    },
    Code {
        code: "tenant_removing",
        means: "the tenant is being removed with all it holds",
        remedy: "wait until its removal has ended, or use another tenant",
    },
    Code {
        code: "pool_exhausted",
        means: "a pool has no free value",
        remedy: "widen the pool, or release instances that hold its values",
    },
    Code {
        code: "unknown_pool",
        means: "the pool does not exist",
        remedy: "create the pool, or leave it out",
    },
    Code {
        code: "volume_moving",
        means: "the last copy of the volume is being made, so that no instance may use it",
        remedy: "wait until the volume has moved, or cancel the move",
    },
    Code {
        code: "request_id_reused",
        means: "the request id was used for something else",
        remedy: "use a new request id; repeat one only with the very same request",
    },
    Code {
        code: "malformed_plan",
        means: "the plan has no claims, or names an instance twice",
        remedy: "correct the plan",
    },
];

/// A step of a claim's life was refused; nothing has changed then.
const STEPS: [Code; 8] = [
    Code {
        code: "no_claim",
        means: "there is no such claim, or no longer",
        remedy: "place the instance again",
    },
    Code {
        code: "not_owner",
        means: "the claim belongs to another tenant",
        remedy: "ask as its owner",
    },
    Code {
        code: "stale_fence",
        means: "a later holder has the claim",
        remedy: "stop acting on it: it is somebody else's now",
    },
    Code {
        code: "lease_expired",
        means: "the lease ended before the claim was bound or renewed",
        remedy: "place the instance again, and renew sooner or ask for a longer lease",
    },
    Code {
        code: "wrong_state",
        means: "the claim is in a state that this step cannot start from",
        remedy: "read the claim, and take the step that its state allows",
    },
    Code {
        code: "not_elastic",
        means: "the instance has no bounds to grow and shrink between",
        remedy: "place it with `elastic`: its min and its max",
    },
    Code {
        code: "invalid_size",
        means: "the size is outside the instance's bounds, or no multiple of its compute unit",
        remedy: "ask for what the answer says is accepted",
    },
    Code {
        code: "migrating",
        means: "the instance is being moved while it runs",
        remedy: "wait until the migration is over, or call it off",
    },
];

/// The whole page.
pub(super) fn page() -> String {
    let mut page = String::from(
        "# Refusals\n\n\
         Written by `cargo xtask docs` from the code; a test fails when it differs. How to read a \
         refusal is in\n[explanations](explanations.md), what each filter lets through in the \
         [policy reference](policy-reference.md#filters).\n\n\
         Codes are stable: none is renamed, and none is used again for something else.\n\n\
         ## No node can take it\n\n\
         The code is that of the last filter that removed a node; *the last nodes* are those that \
         all earlier filters\nhad left.\n\n\
         | Code | What it means | What to do | Waiting may help |\n|---|---|---|---|\n",
    );
    for filter in FILTERS {
        let waiting = if filter.transient { "yes" } else { "no" };
        let (code, means, remedy) = (filter.code, filter.means, filter.remedy);
        let _ = writeln!(page, "| `{code}` | {means} | {remedy} | {waiting} |");
    }
    page.push_str(
        "\nThe ledger answers `no_nodes_active`, `no_capacity_…`, `cpu_cap_no_node`, \
         `group_no_node`, `volume_…` and\n`ipam_exhausted` too, when a plan meets them at the \
         moment it is written down.\n",
    );
    let sections = [
        (
            "The plan met a change",
            "The server plans again by itself; a client sees these only when that did not help.",
            &CONFLICTS[..],
        ),
        ("A limit", "Planning again would not help.", &LIMITS[..]),
        ("A step of a claim's life", "Nothing has changed then.", &STEPS[..]),
    ];
    for (title, about, codes) in sections {
        let _ = write!(page, "\n## {title}\n\n{about}\n\n| Code | What it means | What to do |\n");
        page.push_str("|---|---|---|\n");
        for Code { code, means, remedy } in codes {
            let _ = writeln!(page, "| `{code}` | {means} | {remedy} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use syn::visit::{self, Visit};

    use super::*;

    /// The texts in functions that are called `code`.
    #[derive(Default)]
    struct Codes {
        found: BTreeSet<String>,
        within: bool,
    }

    impl<'ast> Visit<'ast> for Codes {
        fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
            self.within = function.sig.ident == "code";
            // The body alone: a comment is a text, too.
            visit::visit_block(self, &function.block);
            self.within = false;
        }

        fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
            if self.within {
                self.found.insert(text.value());
            }
        }
    }

    #[test]
    fn every_code_of_the_ledger_has_its_line_and_no_other() {
        let path = super::super::root().join("crates/berth-ledger/src/model/answer.rs");
        let source = std::fs::read_to_string(path).unwrap();
        let mut codes = Codes::default();
        codes.visit_file(&syn::parse_file(&source).unwrap());
        assert!(codes.found.len() > 15, "{:?}", codes.found);
        let engine: BTreeSet<&str> = FILTERS.iter().map(|filter| filter.code).collect();
        let ledger = codes.found.iter().map(String::as_str);
        let ledger: BTreeSet<&str> = ledger.filter(|code| !engine.contains(code)).collect();
        let listed = CONFLICTS.iter().chain(&LIMITS).chain(&STEPS).map(|code| code.code);
        assert_eq!(listed.collect::<BTreeSet<&str>>(), ledger);
        let page = page();
        for code in &codes.found {
            assert!(page.contains(&format!("`{code}`")), "{code}");
        }
    }
}
