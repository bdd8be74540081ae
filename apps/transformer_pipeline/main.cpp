#include "apps/transformer_pipeline/application.hpp"

int main(int argc, char** argv) {
  return troupe::apps::run_program(troupe::apps::transformer_application(), argc, argv);
}
