//! Expressions on a device, as Kubernetes evaluates them.

use k8s_openapi::api::resource::v1 as resource;
use serde_json::json;

use super::{DeviceVariable, Expression, on_large_stack};

fn device() -> DeviceVariable {
    let device: resource::Device = serde_json::from_value(json!({
        "name": "gpu-0",
        "attributes": {
            "model": {"string": "A100"},
            "gpu.example.com/index": {"int": 3},
            "healthy": {"bool": true},
            "driverVersion": {"version": "1.10.0-rc.1"},
            "fabric.example.com/links": {"strings": ["a", "b"]},
        },
        "capacity": {"memory": {"value": "40Gi"}, "fabric.example.com/lanes": {"value": "500m"}},
    }))
    .unwrap();
    DeviceVariable::new("gpu.example.com", &device).unwrap()
}

fn evaluate(source: &str) -> Result<bool, String> {
    let expression = Expression::compile(source)?;
    on_large_stack(|| expression.matches(device()))?
}

#[test]
fn a_device_is_seen_by_driver_attributes_and_capacity() {
    for source in [
        r#"device.driver == "gpu.example.com""#,
        r#"device.attributes["gpu.example.com"].model == "A100""#,
        r#"device.attributes["gpu.example.com"].index > 2"#,
        r#"device.attributes["gpu.example.com"].healthy && !(1 > 2)"#,
        r#"device.attributes["gpu.example.com"].model in ["A100", "H100"]"#,
        r#""gpu.example.com" in device.attributes && !("other.example.com" in device.attributes)"#,
        r#"has(device.attributes["gpu.example.com"].model)"#,
        r#"!has(device.attributes["other.example.com"].model)"#,
        r#"device.attributes["other.example.com"].?model.orValue("none") == "none""#,
        r#"device.attributes["fabric.example.com"].links.exists(it, it == "b")"#,
        r#"device.attributes.exists(it, it.startsWith("fabric"))"#,
        r#"cel.bind(it, device.attributes["gpu.example.com"], it.healthy && it.index == 3)"#,
        r#"device.attributes["gpu.example.com"].model.matches("^A[0-9]+$")"#,
        r#"device.attributes["gpu.example.com"].model.lowerAscii() == "a100""#,
        r#"!device.allowMultipleAllocations"#,
    ] {
        assert_eq!(evaluate(source), Ok(true), "{source}");
    }
}

#[test]
fn quantities_and_versions_are_compared_exactly() {
    let memory = r#"device.capacity["gpu.example.com"].memory"#;
    let version = r#"device.attributes["gpu.example.com"].driverVersion"#;
    for (source, expected) in [
        (format!(r#"{memory}.compareTo(quantity("40Gi")) == 0"#), true),
        (format!(r#"{memory} == quantity("40960Mi")"#), true),
        (format!(r#"{memory}.isGreaterThan(quantity("40G"))"#), true),
        (format!(r#"{memory}.isLessThan(quantity("40Gi"))"#), false),
        (format!(r#"{memory}.sub(quantity("39Gi")).asInteger() == 1073741824"#), true),
        (r#"device.capacity["fabric.example.com"].lanes.isInteger()"#.to_owned(), false),
        (
            r#"quantity("50k").add(20).sub(quantity("100k")).sub(-50000) == quantity("20")"#
                .to_owned(),
            true,
        ),
        (r#"isQuantity("200K") || isQuantity("Mi") || isQuantity(" 1")"#.to_owned(), false),
        (format!(r#"{version}.isLessThan(semver("1.10.0"))"#), true),
        (format!(r#"{version}.isGreaterThan(semver("1.9.7"))"#), true),
        (format!(r#"{version}.major() == 1 && {version}.minor() == 10"#), true),
        (r#"semver("1.0.0+a") == semver("1.0.0+b")"#.to_owned(), true),
        (r#"semver("v01.2", true).compareTo(semver("1.2.0")) == 0"#.to_owned(), true),
        (r#"isSemver("v1.0")"#.to_owned(), false),
    ] {
        assert_eq!(evaluate(&source), Ok(expected), "{source}");
    }
}

#[test]
fn errors_say_what_is_wrong() {
    for (source, part) in [
        (r#"device.attributes["gpu.example.com"].color == "red""#, "No such key: color"),
        (
            r#"device.attributes["gpu.example.com"].index == 3 ? 1 : 2"#,
            "does not evaluate to a bool",
        ),
        (r#"device.attributes["gpu.example.com"].model > 3"#, "overload"),
        (r#"device.colour == "red""#, "No such key: colour"),
        ("gadget.driver == 'a'", "gadget"),
        ("ip('10.0.0.1') == ip('10.0.0.1')", "ip(), which this scheduler does not know"),
        ("device.driver ==", "yntax error"),
    ] {
        let error = evaluate(source).unwrap_err();
        assert!(error.contains(part), "{source}: {error}");
    }
}

#[test]
fn expressions_that_could_take_long_are_refused() {
    let ten = "[1,1,1,1,1,1,1,1,1,1]";
    let nested = |levels: usize| {
        let open: String = (0..levels).map(|at| format!("{ten}.all(x{at}, ")).collect();
        format!("{open}true{}", ")".repeat(levels))
    };
    assert_eq!(evaluate(&nested(3)), Ok(true));
    assert!(evaluate(&nested(7)).unwrap_err().contains("estimated cost"));
    let doubled = |levels: usize| {
        let open: String =
            (1..=levels).map(|at| format!("cel.bind(a{at}, a{0}+a{0}, ", at - 1)).collect();
        format!("cel.bind(a0, 'aaaaaaaaaa', {open}a{levels}.size() > 1){}", ")".repeat(levels))
    };
    assert_eq!(evaluate(&doubled(4)), Ok(true));
    assert!(evaluate(&doubled(30)).unwrap_err().contains("estimated cost"));
    for (source, part) in [
        (format!("{}true{}", "(".repeat(65), ")".repeat(65)), "brackets"),
        (format!("{}true", "!".repeat(600)), "operators"),
        (format!("1{} == 1", "+1".repeat(600)), "operators"),
        (format!("'{}' == ''", "a".repeat(11_000)), "bytes"),
    ] {
        assert!(evaluate(&source).unwrap_err().contains(part), "{part}");
    }
    // Chains that are as deep as they are long: parsed and evaluated on the stack of any thread.
    let chain = |length: usize| format!("1{} > 0", "+1".repeat(length));
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let both = move || (evaluate(&chain(500)), evaluate(&chain(55)));
    let (long, short) = small.spawn(both).unwrap().join().unwrap();
    assert_eq!(long, Err("it is nested deeper than 64 levels".to_owned()));
    assert_eq!(short, Ok(true));
}
