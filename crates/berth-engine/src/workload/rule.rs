//! The rules of a workload for capacity and roll-outs.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// What a member does when its own kind of capacity is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CapacityMode {
    /// It waits.
    #[default]
    Strict,
    /// It takes the other kind at once, and returns when there is room.
    Prefer,
    /// It takes the other kind after this many seconds, and returns when there is room.
    FallbackAfter(#[serde(deserialize_with = "seconds")] u32),
}

/// Seconds as a number, or as people write them: `90s`, `5m`, `1h30m`.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(seconds) => Ok(seconds),
        NumberOrText::Text(text) => read_seconds(&text).ok_or_else(|| {
            let what =
                format!("{text:?} is not a time; accepted are 300, \"90s\", \"5m\", \"1h30m\"");
            serde::de::Error::custom(what)
        }),
    }
}

/// The engine cannot use the parser of `berth-api`, which is above it; this one accepts the same units, and
/// also in another order, as it always has.
fn read_seconds(text: &str) -> Option<u32> {
    let (mut total, mut number) = (0_u32, None::<u32>);
    for letter in text.trim().chars() {
        if let Some(digit) = letter.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
            continue;
        }
        let unit = match letter {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    // A number without a unit is accepted only alone.
    match number {
        Some(seconds) => (total == 0).then_some(seconds),
        None => (!text.trim().is_empty()).then_some(total),
    }
}

/// What may be written either way.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText<'a> {
    Number(u32),
    #[serde(borrow)]
    Text(Cow<'a, str>),
}

/// What happens to members whose slot changed its kind of capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnChange {
    /// They are replaced, one at a time.
    #[default]
    Rebuild,
    /// They stay, and are the first to go when fewer are wanted.
    Lazy,
}

/// How a workload's members are shared between on-demand and spot nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CapacityRule {
    /// Whether the rule is in force. Without it members go anywhere, and keep what they have.
    pub enabled: bool,
    /// Members in slots below this number are on-demand, the others spot; absent: all on-demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_on_demand: Option<u32>,
    /// What a member does when its kind is short.
    pub mode: CapacityMode,
    /// What becomes of members when the limit changes.
    pub on_change: OnChange,
    /// With two or more replicas, at least one on-demand and one spot, whatever the limit.
    pub at_least_one_of_each: bool,
}

impl Default for CapacityRule {
    fn default() -> Self {
        Self {
            enabled: true,
            max_on_demand: None,
            mode: CapacityMode::default(),
            on_change: OnChange::default(),
            at_least_one_of_each: false,
        }
    }
}

/// How a new revision takes over from the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// All new ones first; the old ones go when every new one runs.
    #[default]
    BlueGreen,
    /// A few at a time, within `max_surge` and `max_unavailable`.
    Rolling,
    /// The old ones first. What a workload with a volume does whatever it says.
    Recreate,
}

/// A number of members, or a share of them: `2` or `"25%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// So many.
    Count(u32),
    /// So many of a hundred, up to 100.
    Percent(u8),
}

impl Share {
    /// The share of `of` members, rounded up.
    #[must_use]
    pub fn up(self, of: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part(of, percent).div_ceil(100),
        }
        .min(of.max(1))
    }

    /// The share of `of` members, rounded down.
    #[must_use]
    pub fn down(self, of: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => part(of, percent) / 100,
        }
        .min(of)
    }

    const fn is_zero(self) -> bool {
        matches!(self, Self::Count(0) | Self::Percent(0))
    }
}

/// Hundredths of a number; replicas are far below where this would overflow.
fn part(of: u32, percent: u8) -> u32 {
    of.saturating_mul(u32::from(percent))
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |found: &str| {
            let what =
                format!("{found:?} is neither a number such as 2 nor a share such as \"25%\"");
            serde::de::Error::custom(what)
        };
        match NumberOrText::deserialize(deserializer).map_err(|_| wrong("it"))? {
            NumberOrText::Number(count) => Ok(Self::Count(count)),
            NumberOrText::Text(text) => {
                if let Ok(count) = text.trim().parse() {
                    return Ok(Self::Count(count));
                }
                let percent = text.trim().strip_suffix('%').and_then(|text| text.parse().ok());
                percent.filter(|it| *it <= 100).map(Self::Percent).ok_or_else(|| wrong(&text))
            }
        }
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for Share {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
        let percent =
            ObjectBuilder::new().schema_type(Type::String).pattern(Some("^(100|[0-9]{1,2})%$"));
        OneOfBuilder::new()
            .item(number)
            .item(percent)
            .description(Some("A number of members, or a share of them: `2` or `\"25%\"`."))
            .into()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for Share {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Share")
    }
}

/// How a new revision is rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Rolling {
    /// How a new revision takes over.
    pub strategy: Strategy,
    /// With `rolling`: how many more than wanted there may be meanwhile.
    pub max_surge: Share,
    /// How many fewer than wanted may run meanwhile.
    pub max_unavailable: Share,
}

impl Default for Rolling {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            max_surge: Share::Percent(25),
            max_unavailable: Share::Count(0),
        }
    }
}

/// A rule that can never be followed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidRule {
    /// Nothing may come and nothing may go.
    #[error(
        "rolling.max_surge and rolling.max_unavailable are both 0, so nothing could ever change; \
         give one of them at least 1"
    )]
    Stuck,
    /// A wait that is none.
    #[error("capacity.mode fallback-after is 0 seconds; give at least 1, or use prefer")]
    NoWait,
}

impl Rolling {
    /// How many more members than `replicas` may exist, and how many fewer may run. Shares of few
    /// members can round to zero on both sides; then one may be missing, or nothing could ever change.
    #[must_use]
    pub fn surge_and_unavailable(&self, replicas: u32) -> (u32, u32) {
        match (self.max_surge.up(replicas), self.max_unavailable.down(replicas)) {
            (0, 0) => (0, 1),
            limits => limits,
        }
    }

    /// Refuses what could never change anything.
    ///
    /// # Errors
    /// Names the fields and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidRule> {
        let stuck = self.max_surge.is_zero() && self.max_unavailable.is_zero();
        if self.strategy == Strategy::Rolling && stuck { Err(InvalidRule::Stuck) } else { Ok(()) }
    }
}

impl CapacityRule {
    /// Checks the rule.
    ///
    /// # Errors
    /// Names the field and what would be accepted.
    pub fn validate(&self) -> Result<(), InvalidRule> {
        if self.mode == CapacityMode::FallbackAfter(0) {
            return Err(InvalidRule::NoWait);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Result<Share, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_share_is_a_number_or_a_percentage() {
        let cases = [
            ("2", Share::Count(2)),
            ("\"2\"", Share::Count(2)),
            ("\"25%\"", Share::Percent(25)),
            ("\" 100% \"", Share::Percent(100)),
            ("\"0%\"", Share::Percent(0)),
        ];
        for (text, expected) in cases {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_share_is_named_with_what_would_be_one() {
        for text in ["-1", "2.5", "\"101%\"", "\"a few\"", "\"%\"", "\"-5%\"", "null", "[1]"] {
            let error = share(text).expect_err(text);
            assert!(error.contains("neither a number such as 2 nor a share"), "{text}: {error}");
        }
    }

    #[test]
    fn a_share_is_written_as_it_is_read() {
        for share in [Share::Count(3), Share::Percent(25)] {
            let text = serde_json::to_string(&share).expect("a share as text");
            assert_eq!(serde_json::from_str::<Share>(&text).expect("a share"), share);
        }
    }

    #[test]
    fn shares_round_up_or_down_and_never_exceed_the_whole() {
        let cases = [
            (Share::Percent(25), 5, 2, 1),
            (Share::Percent(25), 4, 1, 1),
            (Share::Percent(10), 5, 1, 0),
            (Share::Percent(0), 5, 0, 0),
            (Share::Percent(100), 5, 5, 5),
            (Share::Count(9), 5, 5, 5),
            (Share::Count(1), 0, 1, 0),
        ];
        for (share, of, up, down) in cases {
            assert_eq!((share.up(of), share.down(of)), (up, down), "{share} of {of}");
        }
    }

    fn mode(text: &str) -> Result<CapacityMode, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_wait_is_seconds_or_as_people_write_it() {
        let cases = [
            ("300", 300),
            ("\"300\"", 300),
            ("\"5m\"", 300),
            ("\"90s\"", 90),
            ("\"1h30m\"", 5400),
            ("\"1d\"", 86_400),
            ("\"1w\"", 604_800),
        ];
        for (text, seconds) in cases {
            let text = format!("{{\"fallback-after\":{text}}}");
            assert_eq!(mode(&text), Ok(CapacityMode::FallbackAfter(seconds)), "{text}");
        }
        assert_eq!(mode("\"strict\""), Ok(CapacityMode::Strict));
        assert_eq!(mode("\"prefer\""), Ok(CapacityMode::Prefer));
    }

    #[test]
    fn what_is_no_wait_is_named_with_what_would_be_one() {
        for text in ["soon", "", "5x", "m", "1h30", "99999999999s", "50000d"] {
            let error = mode(&format!("{{\"fallback-after\":\"{text}\"}}")).expect_err(text);
            assert!(error.contains("is not a time; accepted are 300"), "{text}: {error}");
        }
        assert!(mode("\"sometimes\"").is_err());
    }

    #[test]
    fn a_rule_refuses_fields_that_it_does_not_know() {
        let text = r#"{"max_on_demand":3,"max_ondemand":3}"#;
        assert!(serde_json::from_str::<CapacityRule>(text).is_err());
        let rule: CapacityRule = serde_json::from_str("{}").expect("all defaults");
        assert_eq!(rule, CapacityRule::default());
    }

    #[test]
    fn rules_that_can_never_be_followed_are_refused() {
        let none = Share::Count(0);
        let stuck = Rolling { strategy: Strategy::Rolling, max_surge: none, max_unavailable: none };
        assert_eq!(stuck.validate(), Err(InvalidRule::Stuck));
        let recreate = Rolling { strategy: Strategy::Recreate, ..stuck };
        assert_eq!(recreate.validate(), Ok(()));
        assert_eq!(Rolling::default().validate(), Ok(()));

        let mode = CapacityMode::FallbackAfter(0);
        let hasty = CapacityRule { mode, ..CapacityRule::default() };
        assert_eq!(hasty.validate(), Err(InvalidRule::NoWait));
        assert_eq!(CapacityRule::default().validate(), Ok(()));
    }

    #[test]
    fn limits_that_round_to_nothing_let_one_be_missing() {
        let (max_surge, max_unavailable) = (Share::Count(0), Share::Percent(10));
        let rolling = Rolling { strategy: Strategy::Rolling, max_surge, max_unavailable };
        assert_eq!(rolling.surge_and_unavailable(5), (0, 1));
        assert_eq!(rolling.surge_and_unavailable(20), (0, 2));
        assert_eq!(Rolling::default().surge_and_unavailable(5), (2, 0));
    }
}
