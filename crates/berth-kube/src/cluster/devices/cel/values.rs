//! The values that Kubernetes adds to CEL: the variable `device`, quantities and semantic versions.

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use cel::common::traits::{self, Container, Indexer, Iterable, Sizer};
use cel::common::types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use k8s_openapi::api::resource::v1 as resource;

use crate::cluster::quantity;

static DEVICE_TYPE: Type = Type::new_unspecified_type("kubernetes.DRADevice");
static QUANTITY_TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");
static SEMVER_TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

/// The variable `device`: the driver, attributes and capacity of one.
#[derive(Clone, Debug)]
pub(in crate::cluster::devices) struct DeviceVariable(Arc<Fields>);

#[derive(Debug)]
struct Fields {
    driver: CelString<'static>,
    multiple: CelBool,
    attributes: DomainMap,
    capacity: DomainMap,
}

impl DeviceVariable {
    /// The variable for a device of a driver.
    ///
    /// # Errors
    /// When an attribute or a capacity is invalid.
    pub(in crate::cluster::devices) fn new(
        driver: &str,
        device: &resource::Device,
    ) -> Result<Self, String> {
        let (mut attributes, mut capacity) = (DomainMap::default(), DomainMap::default());
        for (name, attribute) in device.attributes.iter().flatten() {
            let value =
                attribute_value(attribute).map_err(|why| format!("attribute {name}: {why}"))?;
            attributes.insert(name, driver, value);
        }
        for (name, it) in device.capacity.iter().flatten() {
            let value = QuantityValue::parse(&it.value.0)
                .ok_or_else(|| format!("capacity {name}: {:?} is not a quantity", it.value.0))?;
            capacity.insert(name, driver, Box::new(value));
        }
        let multiple = CelBool::from(device.allow_multiple_allocations == Some(true));
        let driver = CelString::from(driver.to_owned());
        Ok(Self(Arc::new(Fields { driver, multiple, attributes, capacity })))
    }
}

fn attribute_value(
    attribute: &resource::DeviceAttribute,
) -> Result<Box<dyn Val + 'static>, String> {
    let version = |text: &String| {
        let version = semver::Version::parse(text).map_err(|error| error.to_string())?;
        Ok::<_, String>(Box::new(SemverValue(version)) as Box<dyn Val>)
    };
    let text = |text: &String| Box::new(CelString::from(text.clone())) as Box<dyn Val>;
    let int = |int: &i64| Box::new(CelInt::from(*int)) as Box<dyn Val>;
    let bool = |bool: &bool| Box::new(CelBool::from(*bool)) as Box<dyn Val>;
    let list = |all: Vec<Box<dyn Val>>| Box::new(CelList::from(all)) as Box<dyn Val>;
    match attribute {
        resource::DeviceAttribute { ints: Some(all), .. } => {
            Ok(list(all.iter().map(int).collect()))
        }
        resource::DeviceAttribute { bools: Some(all), .. } => {
            Ok(list(all.iter().map(bool).collect()))
        }
        resource::DeviceAttribute { strings: Some(all), .. } => {
            Ok(list(all.iter().map(text).collect()))
        }
        resource::DeviceAttribute { versions: Some(all), .. } => {
            Ok(list(all.iter().map(version).collect::<Result<_, _>>()?))
        }
        resource::DeviceAttribute { int: Some(it), .. } => Ok(int(it)),
        resource::DeviceAttribute { bool: Some(it), .. } => Ok(bool(it)),
        resource::DeviceAttribute { string: Some(it), .. } => Ok(text(it)),
        resource::DeviceAttribute { version: Some(it), .. } => version(it),
        _ => Err("unsupported attribute value".to_owned()),
    }
}

impl Val for DeviceVariable {
    fn get_type(&self) -> &Type {
        &DEVICE_TYPE
    }

    fn cel_type() -> &'static Type {
        &DEVICE_TYPE
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for DeviceVariable {}

impl Indexer for DeviceVariable {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let name = key.downcast_ref::<CelString<'_>>().map(|it| it.inner().to_owned());
        let name = name.unwrap_or_default();
        Ok(CowVal::Borrowed(match name.as_str() {
            "driver" => &self.0.driver,
            "attributes" => &self.0.attributes,
            "capacity" => &self.0.capacity,
            "allowMultipleAllocations" => &self.0.multiple,
            _ => return Err(ExecutionError::no_such_key(&name)),
        }))
    }

    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(self.get(key)?.into_owned())
    }
}

/// Attributes or capacities by domain. A domain that a device has nothing of is an empty map.
#[derive(Clone, Debug, Default)]
struct DomainMap {
    domains: BTreeMap<String, CelMap<'static>>,
    names: Vec<CelString<'static>>,
    empty: CelMap<'static>,
}

impl DomainMap {
    /// Adds a value; names without a domain are of the driver's.
    fn insert(&mut self, name: &str, driver: &str, value: Box<dyn Val + 'static>) {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        if !self.domains.contains_key(domain) {
            self.names.push(CelString::from(domain.to_owned()));
        }
        let known = self.domains.remove(domain).unwrap_or_default();
        let mut entries: HashMap<CelMapKey<'static>, Box<dyn Val + 'static>> = known.into_inner();
        entries.insert(CelMapKey::from(id.to_owned()), value);
        self.domains.insert(domain.to_owned(), CelMap::from(entries));
    }

    fn find(&self, key: &dyn Val) -> Option<&CelMap<'static>> {
        self.domains.get(key.downcast_ref::<CelString<'_>>()?.inner())
    }
}

impl Val for DomainMap {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for DomainMap {}

impl Indexer for DomainMap {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(CowVal::Borrowed(self.find(key).unwrap_or(&self.empty)))
    }

    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(Box::new(self.find(key).unwrap_or(&self.empty).clone()))
    }
}

impl Container for DomainMap {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.find(key).is_some())
    }
}

impl Sizer for DomainMap {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.domains.len()).unwrap_or(i64::MAX))
    }
}

impl Iterable for DomainMap {
    fn iter<'b, 'v>(&'b self) -> Box<dyn traits::Iterator<'b, 'v> + 'b>
    where
        Self: 'v,
    {
        Box::new(NameIterator(self.names.iter()))
    }
}

struct NameIterator<'b>(std::slice::Iter<'b, CelString<'static>>);

impl<'b, 'v> traits::Iterator<'b, 'v> for NameIterator<'b> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'v)> {
        self.0.next().map(|it| it as &dyn Val)
    }
}

/// A quantity, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QuantityValue(i128);

/// A billion.
const UNIT: i128 = 1_000_000_000;

impl QuantityValue {
    fn parse(text: &str) -> Option<Self> {
        quantity::to_billionths(text).map(Self)
    }

    fn as_integer(self) -> Option<i64> {
        (self.0 % UNIT == 0).then(|| i64::try_from(self.0 / UNIT).ok()).flatten()
    }
}

/// A semantic version; build metadata does not count.
#[derive(Clone, Debug)]
struct SemverValue(semver::Version);

impl PartialEq for SemverValue {
    fn eq(&self, other: &Self) -> bool {
        self.0.cmp_precedence(&other.0) == Ordering::Equal
    }
}

/// A value that is compared by functions only.
macro_rules! opaque_value {
    ($name:ident, $type:ident) => {
        impl Val for $name {
            fn get_type(&self) -> &Type {
                &$type
            }

            fn cel_type() -> &'static Type {
                &$type
            }

            fn equals(&self, other: &dyn Val) -> bool {
                other.downcast_ref::<Self>().is_some_and(|other| other == self)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
            where
                Self: 'v,
            {
                Box::new(self.clone())
            }

            fn as_any(&self) -> Option<&dyn Any> {
                Some(self)
            }
        }

        impl StaticVal for $name {}
    };
}

opaque_value!(QuantityValue, QUANTITY_TYPE);
opaque_value!(SemverValue, SEMVER_TYPE);

fn ordering(ordering: Ordering) -> CelInt {
    CelInt::from(match ordering {
        Ordering::Less => -1_i64,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

fn quantity_of(text: &CelString<'_>) -> Result<QuantityValue, ExecutionError> {
    let found = QuantityValue::parse(text.inner());
    found.ok_or_else(|| {
        ExecutionError::function_error("quantity", format!("{:?} is not a quantity", text.inner()))
    })
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    CelBool::from(QuantityValue::parse(text.inner()).is_some())
}

fn quantity_is_integer(this: &QuantityValue) -> CelBool {
    CelBool::from(this.as_integer().is_some())
}

fn quantity_as_integer(this: &QuantityValue) -> Result<CelInt, ExecutionError> {
    let error = || ExecutionError::function_error("asInteger", "cannot convert value to integer");
    this.as_integer().map(CelInt::from).ok_or_else(error)
}

fn quantity_sign(this: &QuantityValue) -> CelInt {
    ordering(this.0.cmp(&0))
}

fn quantity_add(this: &QuantityValue, other: &QuantityValue) -> QuantityValue {
    QuantityValue(this.0.saturating_add(other.0))
}

fn quantity_add_int(this: &QuantityValue, other: &CelInt) -> QuantityValue {
    QuantityValue(this.0.saturating_add(i128::from(*other.inner()) * UNIT))
}

fn quantity_sub(this: &QuantityValue, other: &QuantityValue) -> QuantityValue {
    QuantityValue(this.0.saturating_sub(other.0))
}

fn quantity_sub_int(this: &QuantityValue, other: &CelInt) -> QuantityValue {
    QuantityValue(this.0.saturating_sub(i128::from(*other.inner()) * UNIT))
}

fn quantity_less(this: &QuantityValue, other: &QuantityValue) -> CelBool {
    CelBool::from(this < other)
}

fn quantity_greater(this: &QuantityValue, other: &QuantityValue) -> CelBool {
    CelBool::from(this > other)
}

fn quantity_compare(this: &QuantityValue, other: &QuantityValue) -> CelInt {
    ordering(this.cmp(other))
}

/// A version with what people leave out or add: a `v` before it, missing parts, leading zeros.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let mut numbers: Vec<&str> = numbers
        .split('.')
        .map(|it| match it.trim_start_matches('0') {
            "" if !it.is_empty() => "0",
            it => it,
        })
        .collect();
    while numbers.len() < 3 && rest.is_empty() {
        numbers.push("0");
    }
    format!("{}{rest}", numbers.join("."))
}

fn parse_semver(text: &str) -> Result<SemverValue, ExecutionError> {
    let parsed = semver::Version::parse(text).map(SemverValue);
    parsed.map_err(|error| ExecutionError::function_error("semver", error))
}

fn semver_of(text: &CelString<'_>) -> Result<SemverValue, ExecutionError> {
    parse_semver(text.inner())
}

fn semver_of_any(text: &CelString<'_>, normalize: &CelBool) -> Result<SemverValue, ExecutionError> {
    match *normalize.inner() {
        true => parse_semver(&normalized(text.inner())),
        false => parse_semver(text.inner()),
    }
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    CelBool::from(parse_semver(text.inner()).is_ok())
}

fn is_any_semver(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
    CelBool::from(semver_of_any(text, normalize).is_ok())
}

fn number(part: u64) -> CelInt {
    CelInt::from(i64::try_from(part).unwrap_or(i64::MAX))
}

fn semver_major(this: &SemverValue) -> CelInt {
    number(this.0.major)
}

fn semver_minor(this: &SemverValue) -> CelInt {
    number(this.0.minor)
}

fn semver_patch(this: &SemverValue) -> CelInt {
    number(this.0.patch)
}

fn semver_less(this: &SemverValue, other: &SemverValue) -> CelBool {
    CelBool::from(this.0.cmp_precedence(&other.0) == Ordering::Less)
}

fn semver_greater(this: &SemverValue, other: &SemverValue) -> CelBool {
    CelBool::from(this.0.cmp_precedence(&other.0) == Ordering::Greater)
}

fn semver_compare(this: &SemverValue, other: &SemverValue) -> CelInt {
    ordering(this.0.cmp_precedence(&other.0))
}

/// Declares the functions.
pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    quantities(env)?;
    versions(env)
}

fn quantities(env: &mut Env) -> Result<(), DeclarationError> {
    use QuantityValue as Quantity;
    add_overload!(env, fn quantity_of: (CelString) -> Result<Quantity>, name = "quantity")?;
    add_overload!(env, fn is_quantity: (CelString) -> CelBool, name = "isQuantity")?;
    add_member_overload!(env, fn quantity_is_integer: (Quantity) -> CelBool, name = "isInteger")?;
    add_member_overload!(env, fn quantity_as_integer: (Quantity) -> Result<CelInt>,
        name = "asInteger")?;
    add_member_overload!(env, fn quantity_sign: (Quantity) -> CelInt, name = "sign")?;
    add_member_overload!(env, fn quantity_add: (Quantity, Quantity) -> Quantity, name = "add")?;
    add_member_overload!(env, fn quantity_add_int: (Quantity, CelInt) -> Quantity, name = "add")?;
    add_member_overload!(env, fn quantity_sub: (Quantity, Quantity) -> Quantity, name = "sub")?;
    add_member_overload!(env, fn quantity_sub_int: (Quantity, CelInt) -> Quantity, name = "sub")?;
    add_member_overload!(env, fn quantity_less: (Quantity, Quantity) -> CelBool,
        name = "isLessThan")?;
    add_member_overload!(env, fn quantity_greater: (Quantity, Quantity) -> CelBool,
        name = "isGreaterThan")?;
    add_member_overload!(env, fn quantity_compare: (Quantity, Quantity) -> CelInt,
        name = "compareTo")?;
    Ok(())
}

fn versions(env: &mut Env) -> Result<(), DeclarationError> {
    use SemverValue as Semver;
    add_overload!(env, fn semver_of: (CelString) -> Result<Semver>, name = "semver")?;
    add_overload!(env, fn semver_of_any: (CelString, CelBool) -> Result<Semver>, name = "semver")?;
    add_overload!(env, fn is_semver: (CelString) -> CelBool, name = "isSemver")?;
    add_overload!(env, fn is_any_semver: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    add_member_overload!(env, fn semver_major: (Semver) -> CelInt, name = "major")?;
    add_member_overload!(env, fn semver_minor: (Semver) -> CelInt, name = "minor")?;
    add_member_overload!(env, fn semver_patch: (Semver) -> CelInt, name = "patch")?;
    add_member_overload!(env, fn semver_less: (Semver, Semver) -> CelBool, name = "isLessThan")?;
    add_member_overload!(env, fn semver_greater: (Semver, Semver) -> CelBool,
        name = "isGreaterThan")?;
    add_member_overload!(env, fn semver_compare: (Semver, Semver) -> CelInt, name = "compareTo")?;
    Ok(())
}
