// In which order a checkpoint gets onto disks.

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "cluster/recovery/checkpoint_write_core.hpp"

namespace {

using writing = troupe::cluster::checkpoint_write_core;
using act = writing::effect;
using acts = std::vector<act>;

/// All that is done, of which `fails` fails; whether the checkpoint is whole then.
acts order_of(bool on_hosts, act fails, bool& is_whole) {
  writing order(on_hosts);
  acts all;
  while (order.next() != act::end) {
    all.push_back(order.next());
    CHECK_FALSE((order.is_whole() && order.next() <= act::sync_names));
    order.did(order.next() != fails);
  }
  order.did(true);
  CHECK(order.next() == act::end);
  is_whole = order.is_whole();
  return all;
}

const acts beside{act::collect,         act::write_manifest, act::take_name, act::sync_names,
                  act::remove_replaced, act::unlist_old,     act::sync_old,  act::remove_old};
const acts on_hosts{act::collect,       act::copy,         act::write_manifest,
                    act::take_name,     act::sync_names,   act::remove_replaced,
                    act::keep_manifest, act::unlist_old,   act::sync_old,
                    act::remove_old,    act::remove_slices};

/// Up to this act, and then others.
acts up_to(const acts& all, act last, const acts& then) {
  acts made;
  for (const auto each : all) {
    made.push_back(each);
    if (each == last) break;
  }
  made.insert(made.end(), then.begin(), then.end());
  return made;
}

}  // namespace

TEST_CASE("a checkpoint is named when all of it is synced, and old ones go when its name is") {
  bool is_whole = false;
  CHECK(order_of(false, act::end, is_whole) == beside);
  CHECK(is_whole);
  CHECK(order_of(true, act::end, is_whole) == on_hosts);
  CHECK(is_whole);
}

TEST_CASE("a checkpoint that fails before it has its name is dropped, and nothing else removed") {
  bool is_whole = true;
  for (const auto each : {act::collect, act::write_manifest, act::take_name}) {
    CHECK(order_of(false, each, is_whole) == up_to(beside, each, {act::drop}));
    CHECK_FALSE(is_whole);
  }
  for (const auto each : {act::collect, act::copy, act::write_manifest, act::take_name}) {
    CHECK(order_of(true, each, is_whole) == up_to(on_hosts, each, {act::drop, act::remove_slices}));
    CHECK_FALSE(is_whole);
  }
}

TEST_CASE("old checkpoints stay where it is not certain that the new one does") {
  bool is_whole = true;
  for (const auto which : {false, true}) {
    const auto& all = which ? on_hosts : beside;
    CHECK(order_of(which, act::sync_names, is_whole) == up_to(all, act::sync_names, {}));
    CHECK_FALSE(is_whole);
    for (const auto each : {act::unlist_old, act::sync_old, act::remove_old}) {
      CHECK(order_of(which, each, is_whole) == up_to(all, each, {}));
      CHECK(is_whole);
    }
    for (const auto each : {act::remove_replaced, act::keep_manifest}) {
      CHECK(order_of(which, each, is_whole) == all);
      CHECK(is_whole);
    }
  }
}
