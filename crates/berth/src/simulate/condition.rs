//! When a comparison of two policies fails: `rejected > +0.1%`.

use std::str::FromStr;

use berth_sim::packing::{Measure, Outcome};

/// A limit for the second of two policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    text: String,
    measure: Measure,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// The value itself, in thousandths.
    Value(u64),
    /// The value less that of the first policy, in thousandths.
    Rise(u64),
    /// The same in thousandths of a percent of the value of the first policy.
    RisePercent(u64),
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "accepted is MEASURE > +PERCENT%, MEASURE > +NUMBER or MEASURE > NUMBER, with at most three \
             decimals; MEASURE is rejected, rejected-cpu, rejected-memory, nodes or stranded"
                .to_owned()
        };
        let (measure, limit) = text.split_once('>').ok_or_else(wrong)?;
        let measure = Measure::named(measure.trim()).ok_or_else(wrong)?;
        let limit = limit.trim();
        let limit = match (limit.strip_prefix('+'), limit.strip_suffix('%')) {
            (Some(rise), None) => Limit::Rise(thousandths(rise).ok_or_else(wrong)?),
            (Some(rise), Some(_)) => {
                Limit::RisePercent(thousandths(rise.trim_end_matches('%')).ok_or_else(wrong)?)
            }
            (None, None) => Limit::Value(thousandths(limit).ok_or_else(wrong)?),
            (None, Some(_)) => return Err(wrong()),
        };
        Ok(Self { text: text.trim().to_owned(), measure, limit })
    }
}

impl Condition {
    /// What to say if the condition holds.
    pub(crate) fn failure(&self, first: &Outcome, second: &Outcome) -> Option<String> {
        // Nodes are counted in thousandths already.
        let scale = if self.measure == Measure::Nodes { 1 } else { 1000 };
        let [first, second] =
            [first, second].map(|outcome| u128::from(self.measure.of(outcome)) * scale);
        let holds = match self.limit {
            Limit::Value(limit) => second > u128::from(limit),
            Limit::Rise(limit) => second > first + u128::from(limit),
            Limit::RisePercent(limit) => {
                second > first && (second - first) * 100_000 > first * u128::from(limit)
            }
        };
        let show = |value: u128| {
            let (whole, rest) = (value / 1000, value % 1000);
            if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}") }
        };
        holds.then(|| {
            format!(
                "{}: {} is {} under the first policy and {} under the second",
                self.text,
                self.measure.name(),
                show(first),
                show(second)
            )
        })
    }
}

/// A number with at most three decimals, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 3 || !is_digits(whole) || !is_digits(decimals) {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(decimals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_compares_the_second_policy_with_the_first() {
        let outcome =
            |rejected, nodes| Outcome { rejected, mean_nodes_milli: nodes, ..Outcome::default() };
        let cases = [
            ("rejected > +0.1%", 1000, 1001, false),
            ("rejected > +0.1%", 1000, 1002, true),
            ("rejected > +0.1%", 0, 0, false),
            ("rejected > +0.1%", 0, 1, true),
            ("rejected>+5", 10, 15, false),
            ("rejected > +5", 10, 16, true),
            ("rejected > 12", 20, 12, false),
            ("rejected > 12", 20, 13, true),
        ];
        for (text, first, second, holds) in cases {
            let condition: Condition = text.parse().unwrap();
            let found = condition.failure(&outcome(first, 0), &outcome(second, 0));
            assert_eq!(found.is_some(), holds, "{text}: {first} and {second}: {found:?}");
        }
        let condition: Condition = "nodes > 400.5".parse().unwrap();
        assert!(condition.failure(&outcome(0, 0), &outcome(0, 400_500)).is_none());
        let said = condition.failure(&outcome(0, 0), &outcome(0, 400_501)).unwrap();
        assert!(said.contains("400.501 under the second"), "{said}");
        for wrong in
            ["rejected", "rejections > 1", "rejected > 1%", "rejected > -1", "nodes > +1.2345"]
        {
            assert!(wrong.parse::<Condition>().unwrap_err().contains("MEASURE"), "{wrong}");
        }
    }
}
