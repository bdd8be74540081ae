#include "cluster/config/optimizer_options.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/config/option_fields.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using namespace fields;

std::optional<double> chosen(const trainer_config& config, const std::string& name) {
  const auto found = config.optimizer.options.find(name);
  return found != config.optimizer.options.end() ? std::optional(found->second) : std::nullopt;
}

// The fields of an option that some optimizers have: `of_sgd` is what it is where nothing is given
// and the program has no default of its own.

number_field rule_number(const std::string& name, std::optional<double> of_sgd, double least,
                         double most) {
  return {[name](trainer_config& c, double value) { c.optimizer.options[name] = value; },
          [name, of_sgd](const trainer_config& c) {
            const auto value = chosen(c, name);
            return value ? value : of_sgd;
          },
          least, most, false};
}

switch_field rule_switch(const std::string& name) {
  return {[name](trainer_config& c, bool value) { c.optimizer.options[name] = value ? 1 : 0; },
          [name](const trainer_config& c) {
            const auto value = chosen(c, name);
            return value ? std::optional(*value != 0) : std::nullopt;
          }};
}

text_field rule_words(const std::string& name, std::span<const std::string_view> words) {
  return {[name, words](trainer_config& c, const std::string& value) {
            for (std::size_t i = 0; i < words.size(); ++i)
              if (words[i] == value) c.optimizer.options[name] = static_cast<double>(i);
          },
          [name, words](const trainer_config& c) {
            const auto value = chosen(c, name);
            return std::string(value ? words[static_cast<std::size_t>(*value)] : "");
          },
          {words.begin(), words.end()}};
}

std::string flag_of(std::string flag, const std::string& key) {
  flag += key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// What the optimizers say of one option, taken together.
struct shared_rule {
  optimizers::option_rule widest;
  std::vector<std::string> users;
};

// Every option of an optimizer but those that have a help of their own below.
std::map<std::string, shared_rule> other_rules(const optimizers::registry& known) {
  std::map<std::string, shared_rule> found;
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
  const std::string flag = flag_of("--", name);
  const std::string help = std::string(rule.help) + (rule.help.empty() ? "Option of " : " (") +
                           join({users.begin(), users.end()}) + (rule.help.empty() ? "" : ")");
  if (rule.is_flag)
    return {"optimizer", name, flag, flag_of("--no-", name), "", help, rule_switch(name)};
  if (!rule.words.empty())
    return {"optimizer", name, flag, "", "KIND", help, rule_words(name, rule.words)};
  const double most = rule.most >= optimizers::largest_option ? unbounded : rule.most;
  return {
      "optimizer", name, flag, "", "X", help, rule_number(name, std::nullopt, rule.least, most)};
}

std::vector<option> rule_options(const optimizers::registry& known) {
  number_field lr = rule_number("lr", 0.008, 0, unbounded);
  lr.above_least = true;
  std::vector<option> options{
      {"optimizer", "name", "--optimizer", "", "NAME", "Optimizer",
       text(&optimizer_config::name, known.names())},
      {"optimizer", "lr", "--lr", "", "X",
       "Learning rate; the default shown is that of sgd, other optimizers have their own", lr},
      {"optimizer", "momentum", "--momentum", "", "X", "Momentum factor",
       rule_number("momentum", 0.9, 0, unbounded)},
      {"optimizer", "dampening", "--dampening", "", "X",
       "Dampening: the gradient is multiplied by 1 - dampening before it is added to the momentum "
       "buffer",
       rule_number("dampening", 0, 0, 1)},
      {"optimizer", "weight_decay", "--weight-decay", "", "X", "Weight decay coefficient",
       rule_number("weight_decay", 0, 0, unbounded)},
      {"optimizer", "nesterov", "--nesterov", "--no-nesterov", "", "Use Nesterov momentum",
       rule_switch("nesterov")},
  };
  for (const auto& [name, rule] : other_rules(known)) options.push_back(rule_option(name, rule));
  return options;
}

std::vector<option> schedule_options() {
  return {
      {"optimizer", "lr_schedule", "--lr-schedule", "", "KIND",
       "Learning rate schedule, after the warm-up", choice(&optimizers::rate_schedule::curve)},
      {"optimizer", "lr_warmup", "--lr-warmup", "", "STEPS",
       "Steps in which the learning rate rises linearly to its full value",
       integer(&optimizers::rate_schedule::warmup, 0, any)},
      {"optimizer", "lr_end", "--lr-end", "", "X",
       "Final learning rate, as a share of lr; not for constant and step",
       number(&optimizers::rate_schedule::end, 0, 1)},
      {"optimizer", "lr_step_every", "--lr-step-every", "", "STEPS",
       "Steps between two changes of the learning rate (step schedule)",
       integer(&optimizers::rate_schedule::step_every, 1, any)},
      {"optimizer", "lr_step_factor", "--lr-step-factor", "", "X",
       "Factor by which each change multiplies the learning rate (step schedule)",
       number(&optimizers::rate_schedule::step_factor, 0, unbounded)},
      {"optimizer", "lr_power", "--lr-power", "", "X", "Exponent of the polynomial schedule",
       positive(&optimizers::rate_schedule::power)},
      {"optimizer", "lr_peak", "--lr-peak", "", "X",
       "Share of the steps in which the learning rate rises (one-cycle schedule)",
       number(&optimizers::rate_schedule::peak, 0, 1)},
      {"optimizer", "lr_start", "--lr-start", "", "X",
       "Initial learning rate, as a share of lr (one-cycle schedule)",
       number(&optimizers::rate_schedule::start, 0, 1)},
      of_stages({"optimizer", "groups", "--groups", "", "GROUP,..",
                 "Parameter groups with options of their own: \"*.bias|*.bn?.* weight_decay=0 "
                 "lr_scale=0.5\"",
                 list(&optimizer_config::groups)}),
      of_stages({"optimizer", "clip_value", "--clip-value", "", "X",
                 "Maximum magnitude of a gradient's elements; 0: no clipping",
                 number(&optimizer_config::clip_value, 0, unbounded)}),
      of_stages({"optimizer", "clip_norm", "--clip-norm", "", "X",
                 "Maximum norm of the gradients of all stages together; 0: no clipping",
                 number(&optimizer_config::clip_norm, 0, unbounded)}),
  };
}

}  // namespace

std::vector<option> optimizer_options(const optimizers::registry& known) {
  auto options = rule_options(known);
  for (auto& entry : schedule_options()) options.push_back(std::move(entry));
  return options;
}

}  // namespace troupe::cluster
