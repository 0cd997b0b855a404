//! Pictures of refusals that a real engine gave.

use berth_api::engine::{
    Amounts, Batch, Engine, InstanceId, InstanceRequest, NodeFacts, NodeState, PlaceError, Policy,
    Refusal, Timestamp, TraitValue,
};
use berth_control::instance_spec::request_of;
use clap::Parser;

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);

fn node(name: &str, memory_mib: u32) -> NodeFacts {
    let mut facts = NodeFacts::new(name, Amounts::new(16_000, memory_mib).with_disk(1 << 20));
    facts.heartbeat_at = NOW;
    facts
}

fn engine() -> Engine {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    let mut nodes: Vec<NodeFacts> =
        (0..40).map(|number| node(&format!("plain-{number:02}"), 32_768)).collect();
    for number in 0..6 {
        let mut facts = node(&format!("fast-{number}"), 65_536);
        facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
        nodes.push(facts);
    }
    let mut cordoned = node("fast-6", 1 << 20);
    cordoned.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
    cordoned.state = NodeState::Cordoned;
    nodes.push(cordoned);
    let mut silent = node("fast-7", 65_536);
    silent.heartbeat_at = Timestamp(NOW.0 - 600);
    nodes.push(silent);
    for facts in &nodes {
        engine.fleet_mut().add_node(facts).unwrap();
    }
    engine
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    request: RequestFlags,
}

/// The instance that flags ask for, as the server passes it to its engine.
fn instance(request: &PlaceRequest, number: u128) -> InstanceRequest {
    let id = InstanceId::from_u128(0x100 + number);
    InstanceRequest { id, ..request_of("acme", &request.instances[0]) }
}

fn expect_refusal(engine: &mut Engine, request: &PlaceRequest) -> Refusal {
    match engine.place(&instance(request, 0), NOW) {
        Err(PlaceError::Refused(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

fn strip_styles(drawing: &str) -> String {
    anstream::adapter::strip_str(drawing).to_string()
}

fn draw_refusal(engine: &mut Engine, line: &str) -> String {
    let words = std::iter::once("place").chain(line.split(' '));
    let flags = Line::try_parse_from(words).unwrap().request;
    let request = flags.request().unwrap();
    let refusal = expect_refusal(engine, &request);
    strip_styles(&draw_refusals(&[refusal], &Advice::new(&flags, Vec::new(), &request)))
}

#[test]
fn too_much_memory_shows_who_came_close_and_commands_that_help() {
    let mut engine = engine();
    let text =
        draw_refusal(&mut engine, "--cpu 4 --memory 100GiB --disk 10GiB --trait ssd --tenant acme");
    insta::assert_snapshot!(text);
}

#[test]
fn a_rule_that_holds_nowhere_is_softened_in_the_command() {
    let mut engine = engine();
    let text = draw_refusal(&mut engine, "--memory 1GiB --affinity role==db@rack");
    insta::assert_snapshot!(text);
}

#[test]
fn a_full_fleet_names_the_instances_whose_release_would_help() {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    engine.fleet_mut().add_node(&node("only", 16_384)).unwrap();
    let resident =
        InstanceRequest::new(InstanceId::from_u128(7), "acme", Amounts::new(500, 12_288));
    engine.fleet_mut().claim(&resident, &"only".into()).unwrap();
    insta::assert_snapshot!(draw_refusal(&mut engine, "--cpu 500m --memory 8GiB"));
}

#[test]
fn no_nodes_at_all_is_said_plainly() {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    insta::assert_snapshot!(draw_refusal(&mut engine, "--memory 1GiB"));
}

#[test]
fn a_batch_says_how_the_search_ended() {
    let mut engine = Engine::new(Policy::builtin("balanced").unwrap());
    engine.fleet_mut().add_node(&node("a", 16_384)).unwrap();
    engine.fleet_mut().add_node(&node("b", 16_384)).unwrap();
    let line = "place --memory 6GiB --count 8 --best-effort";
    let flags = Line::try_parse_from(line.split(' ').take(5)).unwrap().request;
    let request = flags.request().unwrap();
    let requests = (0..8).map(|number| instance(&request, number)).collect();
    let outcome = engine.place_batch(&Batch::new(requests), NOW).unwrap();
    let refusals: Vec<Refusal> = outcome.refused.into_iter().map(|(_, refusal)| refusal).collect();
    let advice = Advice::new(&flags, vec!["--lease".to_owned(), "5m".to_owned()], &request);
    insta::assert_snapshot!(strip_styles(&draw_refusals(&refusals, &advice)));
}

#[test]
fn the_command_of_the_first_fix_is_granted_when_it_is_followed() {
    let mut engine = engine();
    let text = draw_refusal(&mut engine, "--cpu 4 --memory 100GiB --trait ssd");
    let command = text.lines().map(str::trim).find(|line| line.starts_with("berth place"));
    let words = command.unwrap().split(' ').skip(1);
    let request = Line::try_parse_from(words).unwrap().request.request().unwrap();
    assert!(engine.place(&instance(&request, 1), NOW).is_ok(), "{command:?}");
}

#[test]
fn a_refusal_in_the_log_has_no_command_of_its_own() {
    let mut engine = engine();
    let words = ["place", "--memory", "100GiB"];
    let request = Line::try_parse_from(words).unwrap().request.request().unwrap();
    let text =
        strip_styles(&draw_refusals(&[expect_refusal(&mut engine, &request)], &Advice::none()));
    assert!(!text.contains("berth place"), "{text}");
}

#[test]
fn bars_are_scaled_and_never_vanish() {
    assert_eq!(bar(0, 10), "");
    assert_eq!(bar(1, 100_000), "▏");
    assert_eq!(bar(5, 10), "█".repeat(BAR / 2));
    assert_eq!(bar(10, 10), "█".repeat(BAR));
}

#[test]
fn changes_that_help_together_name_their_node_once() {
    let line = "--cpu 4 --memory 100GiB --trait ssd --network dmz";
    insta::assert_snapshot!(draw_refusal(&mut engine(), line));
}
