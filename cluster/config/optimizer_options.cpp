#include "cluster/config/optimizer_options.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/config/option_fields.hpp"
#include "messages/base/near_miss.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::cluster {
namespace {

using namespace fields;

// The fields of an option that some optimizers have: `of_sgd` is what it is where nothing is given
// and the program has no default of its own.

number_field rule_number(const std::string& name, std::optional<double> of_sgd, double least,
                         double most) {
  return {[name](trainer_config& c, double value) { c.optimizer.options[name] = value; },
          [name, of_sgd](const trainer_config& c) {
            const auto found = c.optimizer.options.find(name);
            return found != c.optimizer.options.end() ? std::optional(found->second) : of_sgd;
          },
          least, most, false};
}

switch_field rule_switch(const std::string& name) {
  return {[name](trainer_config& c, bool value) { c.optimizer.options[name] = value ? 1 : 0; },
          [](const trainer_config&) { return std::optional<bool>(); }};
}

text_field rule_words(const std::string& name, std::span<const std::string_view> words) {
  return {[name, words](trainer_config& c, const std::string& value) {
            for (std::size_t i = 0; i < words.size(); ++i)
              if (words[i] == value) c.optimizer.options[name] = static_cast<double>(i);
          },
          [](const trainer_config&) { return std::string(); },
          {words.begin(), words.end()}};
}

// A text that lives as long as the program: options hold views.
std::string_view keep(std::string text) {
  static std::deque<std::string> kept;
  return kept.emplace_back(std::move(text));
}

std::string_view flag_of(std::string_view start, std::string_view key) {
  std::string flag = std::string(start) + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return keep(std::move(flag));
}

// What the built-in optimizers say of one option, taken together.
struct shared_rule {
  optimizers::option_rule widest;
  std::vector<std::string> users;
};

// Every option of a built-in optimizer but those that have a help of their own below.
std::map<std::string, shared_rule> other_rules() {
  std::map<std::string, shared_rule> found;
  const optimizers::registry known = optimizers::built_in();
  for (const auto& name : known.names()) {
    const auto entry = known.find(name);
    for (const auto& rule : entry->rules) {
      const std::string key(rule.name);
      if (key == "lr" || key == "momentum" || key == "dampening" || key == "weight_decay" ||
          key == "nesterov")
        continue;
      auto& [widest, users] = found.try_emplace(key, shared_rule{rule, {}}).first->second;
      widest.least = std::min(widest.least, rule.least);
      widest.most = std::max(widest.most, rule.most);
      users.push_back(name);
    }
  }
  return found;
}

// The optimizer itself checks what lies between its own least and most.
option rule_option(const std::string& name, const shared_rule& shared) {
  const auto& [rule, users] = shared;
  const std::string_view key = keep(name), flag = flag_of("--", name);
  const std::string_view help =
      keep(std::string(rule.help) + " (" + join({users.begin(), users.end()}) + ")");
  if (rule.is_flag)
    return {"optimizer", key, flag, flag_of("--no-", name), "", help, rule_switch(name), ""};
  if (!rule.words.empty())
    return {"optimizer", key, flag, "", "KIND", help, rule_words(name, rule.words), ""};
  const double most = rule.most >= optimizers::largest_option ? unbounded : rule.most;
  return {"optimizer", key, flag, "", "X", help, rule_number(name, std::nullopt, rule.least, most),
          ""};
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (auto& name : optimizers::built_in().names()) names.push_back(keep(std::move(name)));
  return names;
}

std::vector<option> rule_options() {
  number_field lr = rule_number("lr", 0.008, 0, unbounded);
  lr.above_least = true;
  std::vector<option> options{
      {"optimizer", "name", "--optimizer", "", "NAME", "Update rule",
       text(
           [](auto& c) -> auto& { return c.optimizer.name; }, optimizer_names()),
       ""},
      {"optimizer", "lr", "--lr", "", "X", "Learning rate; others than sgd: as torch.optim has it",
       lr, ""},
      {"optimizer", "momentum", "--momentum", "", "X", "Share of the old step in the new one",
       rule_number("momentum", 0.9, 0, unbounded), ""},
      {"optimizer", "dampening", "--dampening", "", "X",
       "Share of the gradient kept out of momentum", rule_number("dampening", 0, 0, 1), ""},
      {"optimizer", "weight_decay", "--weight-decay", "", "X", "Pull of the weights to zero",
       rule_number("weight_decay", 0, 0, unbounded), ""},
      {"optimizer", "nesterov", "--nesterov", "--no-nesterov", "", "Nesterov's momentum",
       rule_switch("nesterov"), ""},
  };
  for (const auto& [name, rule] : other_rules()) options.push_back(rule_option(name, rule));
  return options;
}

std::vector<option> schedule_options() {
  return {
      {"optimizer", "lr_schedule", "--lr-schedule", "", "KIND",
       "Course of the learning rate over the run, after its warm-up",
       choice([](auto& c) -> auto& { return c.optimizer.schedule.curve; }), ""},
      {"optimizer", "lr_warmup", "--lr-warmup", "", "STEPS",
       "Steps in which the learning rate rises evenly to its full height",
       integer(
           [](auto& c) -> auto& { return c.optimizer.schedule.warmup; }, 0, any),
       ""},
      {"optimizer", "lr_end", "--lr-end", "", "X",
       "Where the course ends, as a share of the learning rate; not for constant and step",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.end; }, 0, 1),
       ""},
      {"optimizer", "lr_step_every", "--lr-step-every", "", "STEPS",
       "step: steps between two changes of the learning rate",
       integer(
           [](auto& c) -> auto& { return c.optimizer.schedule.step_every; }, 1, any),
       ""},
      {"optimizer", "lr_step_factor", "--lr-step-factor", "", "X",
       "step: what each change multiplies it with",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.step_factor; }, 0, unbounded),
       ""},
      {"optimizer", "lr_power", "--lr-power", "", "X", "polynomial: its exponent",
       positive([](auto& c) -> auto& { return c.optimizer.schedule.power; }), ""},
      {"optimizer", "lr_peak", "--lr-peak", "", "X",
       "one-cycle: the share of the steps in which the learning rate rises",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.peak; }, 0, 1),
       ""},
      {"optimizer", "lr_start", "--lr-start", "", "X",
       "one-cycle: where it rises from, as a share of the learning rate",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.start; }, 0, 1),
       ""},
      {"optimizer", "groups", "--groups", "", "GROUP,..",
       "Parameters with options of their own: \"*.bias|*.bn?.* weight_decay=0 lr_scale=0.5\"",
       list([](auto& c) -> auto& { return c.optimizer.groups; }), ""},
      {"optimizer", "clip_value", "--clip-value", "", "X",
       "Largest magnitude of an element of a gradient; 0: any",
       number(
           [](auto& c) -> auto& { return c.optimizer.clip_value; }, 0, unbounded),
       ""},
      {"optimizer", "clip_norm", "--clip-norm", "", "X",
       "Largest norm of the gradients of all stages together; 0: any",
       number(
           [](auto& c) -> auto& { return c.optimizer.clip_norm; }, 0, unbounded),
       ""},
  };
}

}  // namespace

std::vector<option> optimizer_options() {
  auto options = rule_options();
  for (auto& entry : schedule_options()) options.push_back(std::move(entry));
  return options;
}

}  // namespace troupe::cluster
